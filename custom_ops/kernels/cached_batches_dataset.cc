// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
// A source of tf.data: batches of examples from memory, without a function or Python per example.
#include <algorithm>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "custom_ops/engine/examples/example_reader.h"
#include "custom_ops/engine/examples/registry.h"
#include "custom_ops/kernels/conversions.h"
#include "custom_ops/kernels/example_format.h"
#include "tensorflow/core/framework/dataset.h"
#include "tensorflow/core/framework/model.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/partial_tensor_shape.h"

namespace tfdear {
namespace {

using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::PartialTensorShape;
using tensorflow::Tensor;
using tensorflow::TensorShape;
namespace data = tensorflow::data;

constexpr char kBegun[] = "begun";
constexpr char kEpoch[] = "epoch";
constexpr char kStep[] = "step";
// Examples are fetched into the processor's caches so many rows before they are copied.
constexpr int64_t kRowsAhead = 2;

// The format of examples which, or of which batches, have these types and shapes.
ExampleFormat FormatOf(const tensorflow::DataTypeVector& types,
                       const std::vector<PartialTensorShape>& shapes, bool batched,
                       size_t components) {
  std::vector<PartialTensorShape> of_rows;
  for (size_t i = 0; i < components; ++i) {
    if (!batched) {
      of_rows.push_back(shapes[i]);
      continue;
    }
    const auto sizes = shapes[i].dim_sizes();
    of_rows.emplace_back(tensorflow::gtl::ArraySlice<int64_t>(sizes.data() + 1, sizes.size() - 1));
  }
  return ExampleFormat({types.begin(), types.begin() + components}, of_rows);
}

class CachedBatchesDatasetOp : public data::DatasetOpKernel {
 public:
  explicit CachedBatchesDatasetOp(OpKernelConstruction* context) : DatasetOpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("batched", &batched_));
    OP_REQUIRES_OK(context, context->GetAttr("positions", &positions_));
    OP_REQUIRES_OK(context, context->GetAttr("output_types", &types_));
    OP_REQUIRES_OK(context, context->GetAttr("output_shapes", &shapes_));
    OP_REQUIRES(context, types_.size() == shapes_.size() && types_.size() > (positions_ ? 1 : 0),
                absl::InvalidArgumentError("a batch needs as many shapes as types, and a tensor"));
    for (const PartialTensorShape& shape : shapes_) {
      OP_REQUIRES(context, !batched_ || shape.dims() > 0,
                  absl::InvalidArgumentError("tensors of a batch need a first dimension"));
    }
  }

  void MakeDataset(OpKernelContext* context, data::DatasetBase** output) override {
    int64_t number = 0, read_ahead = 0;
    OP_REQUIRES_OK(context, data::ParseScalarArgument<int64_t>(context, "reader", &number));
    OP_REQUIRES_OK(context, data::ParseScalarArgument<int64_t>(context, "read_ahead", &read_ahead));
    std::shared_ptr<ExampleReader> reader = Registry<ExampleReader>::Get()->Find(number);
    OP_REQUIRES(context, reader != nullptr,
                absl::FailedPreconditionError(
                    "this data set's cache is gone: it was closed, or made in another process"));
    *output = new Dataset(context, number, std::move(reader), read_ahead, batched_, positions_,
                          types_, shapes_);
  }

 private:
  class Dataset : public data::DatasetBase {
   public:
    Dataset(OpKernelContext* context, int64_t number, std::shared_ptr<ExampleReader> reader,
            int64_t read_ahead, bool batched, bool positions,
            const tensorflow::DataTypeVector& types, const std::vector<PartialTensorShape>& shapes)
        : DatasetBase(data::DatasetContext(context)),
          number_(number),
          reader_(std::move(reader)),
          read_ahead_(read_ahead),
          batched_(batched),
          positions_(positions),
          types_(types),
          shapes_(shapes),
          format_(FormatOf(types, shapes, batched, types.size() - (positions ? 1 : 0))) {}

    std::unique_ptr<data::IteratorBase> MakeIteratorInternal(
        const std::string& prefix) const override {
      return std::make_unique<Iterator>(
          Iterator::Params{this, absl::StrCat(prefix, "::DearCachedBatches")});
    }

    const tensorflow::DataTypeVector& output_dtypes() const override { return types_; }
    const std::vector<PartialTensorShape>& output_shapes() const override { return shapes_; }
    std::string DebugString() const override { return "DearCachedBatchesDatasetOp::Dataset"; }
    int64_t CardinalityInternal(data::CardinalityOptions) const override {
      if (batched_) return reader_->steps();
      return reader_->options().may_skip ? data::kUnknownCardinality : reader_->rows();
    }
    absl::Status InputDatasets(std::vector<const DatasetBase*>*) const override {
      return absl::OkStatus();
    }
    absl::Status CheckExternalState() const override { return absl::OkStatus(); }

   protected:
    absl::Status AsGraphDefInternal(data::SerializationContext*, DatasetGraphDefBuilder* builder,
                                    tensorflow::Node** output) const override {
      tensorflow::Node *reader, *read_ahead;
      TF_RETURN_IF_ERROR(builder->AddScalar(number_, &reader));
      TF_RETURN_IF_ERROR(builder->AddScalar(read_ahead_, &read_ahead));
      tensorflow::AttrValue batched, positions;
      builder->BuildAttrValue(batched_, &batched);
      builder->BuildAttrValue(positions_, &positions);
      return builder->AddDataset(this, {reader, read_ahead},
                                 {{"batched", batched}, {"positions", positions}}, output);
    }

   private:
    // A batch that was said to be read soon.
    struct Ahead {
      int64_t first = 0;  // Position within the epoch of its first row.
      std::vector<int64_t> examples;
      std::vector<bool> wanted;  // Which of them were not in memory.
    };

    class Iterator : public data::DatasetIterator<Dataset> {
     public:
      explicit Iterator(const Params& params)
          : DatasetIterator<Dataset>(params), store_(params.dataset->reader_->store()) {}

      ~Iterator() override { ForgetAhead(); }

      absl::Status GetNextInternal(data::IteratorContext* context, std::vector<Tensor>* batch,
                                   bool* end_of_sequence) override {
        tensorflow::mutex_lock lock(mutex_);
        if (!begun_) Begin(dataset()->reader_->Begin());
        do {
          *end_of_sequence = next_.step >= dataset()->reader_->steps();
          if (*end_of_sequence) return absl::OkStatus();
          LookAhead();
          const Ahead wanted = std::move(ahead_.front());
          ahead_.pop_front();
          const absl::Status status = Take(context, wanted, batch);
          if (!status.ok()) {
            // Who reads on after an error gets the same batch.
            ForgetAhead();
            looked_ahead_ = next_.step;
            return status;
          }
          ++next_.step;
        } while (batch->empty());
        return absl::OkStatus();
      }

      bool SymbolicCheckpointCompatible() const override { return true; }

     protected:
      std::shared_ptr<data::model::Node> CreateNode(data::IteratorContext*,
                                                    data::model::Node::Args args) const override {
        return data::model::MakeSourceNode(std::move(args));
      }

      absl::Status SaveInternal(data::SerializationContext*,
                                data::IteratorStateWriter* writer) override {
        tensorflow::mutex_lock lock(mutex_);
        TF_RETURN_IF_ERROR(writer->WriteScalar(prefix(), kBegun, int64_t{begun_}));
        TF_RETURN_IF_ERROR(writer->WriteScalar(prefix(), kEpoch, next_.epoch));
        return writer->WriteScalar(prefix(), kStep, next_.step);
      }

      absl::Status RestoreInternal(data::IteratorContext*,
                                   data::IteratorStateReader* reader) override {
        tensorflow::mutex_lock lock(mutex_);
        int64_t begun = 0;
        ExampleReader::Position saved;
        TF_RETURN_IF_ERROR(reader->ReadScalar(prefix(), kBegun, &begun));
        TF_RETURN_IF_ERROR(reader->ReadScalar(prefix(), kEpoch, &saved.epoch));
        TF_RETURN_IF_ERROR(reader->ReadScalar(prefix(), kStep, &saved.step));
        ForgetAhead();
        begun_ = false;
        if (begun == 0) return absl::OkStatus();
        Begin(saved);
        dataset()->reader_->SetNext({saved.epoch + 1, 0});
        return absl::OkStatus();
      }

     private:
      void Begin(ExampleReader::Position position) TF_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        begun_ = true;
        next_ = position;
        looked_ahead_ = position.step;
        order_.emplace(dataset()->reader_->OrderOf(position.epoch));
      }

      // Wants the examples of this batch and of some behind it.
      void LookAhead() TF_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        const ExampleReader& reader = *dataset()->reader_;
        const int64_t end = std::min(next_.step + 1 + dataset()->read_ahead_, reader.steps());
        for (; looked_ahead_ < end; ++looked_ahead_) {
          const auto [first, last] = reader.Rows(looked_ahead_);
          Ahead& batch = ahead_.emplace_back();
          batch.first = first;
          for (int64_t position = first; position < last; ++position) {
            batch.examples.push_back(order_->At(position));
            batch.wanted.push_back(store_->Want(batch.examples.back()));
          }
        }
      }

      void ForgetAhead() {
        for (const Ahead& batch : ahead_) {
          for (int64_t example : batch.examples) store_->GiveUp(example);
        }
        ahead_.clear();
      }

      // The tensors of a batch, or of an example; none: there is no such example.
      absl::Status Take(data::IteratorContext* context, const Ahead& wanted,
                        std::vector<Tensor>* tensors) {
        const int64_t rows = wanted.examples.size();
        const ExampleFormat& format = dataset()->format_;
        const size_t components = dataset()->types_.size() - (dataset()->positions_ ? 1 : 0);
        absl::Status status;
        for (size_t i = 0; dataset()->batched_ && i < components; ++i) {
          tensors->emplace_back(context->allocator({}), dataset()->types_[i],
                                format.BatchShape(i, rows));
          if (!tensors->back().IsInitialized()) {
            status = absl::ResourceExhaustedError(
                absl::StrCat("DataCache: this rank has no memory for a batch of ", rows,
                             " examples. Use smaller batches, or start fewer ranks per node"));
          }
        }
        if (!dataset()->batched_ && ahead_.size() >= kRowsAhead) {
          for (int64_t example : ahead_[kRowsAhead - 1].examples) store_->Prefetch(example);
        }
        // Places of rows that are there, which come one behind the other.
        std::vector<int64_t> places;
        tensorflow::CancellationManager* const manager = context->cancellation_manager();
        std::function<void()> deregister;
        int64_t begin_us = 0;
        int64_t waited = 0;
        for (int64_t row = 0; row < rows; ++row) {
          const int64_t example = wanted.examples[row];
          if (!status.ok()) {
            store_->GiveUp(example);
            continue;
          }
          if (row + kRowsAhead < rows) store_->Prefetch(wanted.examples[row + kRowsAhead]);
          ExampleStore::Record record;
          if (!store_->TakeNow(example, &record)) {
            if (begin_us == 0) {
              begin_us = EventRecord::NowMicros();
              status = tensorflow::RegisterCancellationCallback(
                  manager, [store = store_] { store->Wake(); }, &deregister);
            }
            const auto cancelled = [manager] {
              return manager != nullptr && manager->IsCancelled();
            };
            if (status.ok()) status = ToAbsl(store_->Take(example, cancelled, &record));
            ++waited;
          } else if (wanted.wanted[row]) {
            store_->GiveUp(example);
          }
          if (!status.ok() || record.bytes == 0) continue;
          if (dataset()->batched_) {
            status = format.FillRow(record.data, record.bytes, places.size(), tensors);
          } else {
            if (record.owner == nullptr) record.owner = store_;
            status = format.Read(record.data, record.bytes, record.owner, tensors);
          }
          places.push_back(next_.epoch * store_->examples() + wanted.first + row);
        }
        if (deregister) deregister();
        if (waited > 0) store_->Note(EventKind::kDataWait, waited, begin_us);
        if (!status.ok()) return status;
        const int64_t count = places.size();
        for (Tensor& tensor : *tensors) {
          if (dataset()->batched_ && count < rows) tensor = tensor.Slice(0, count);
        }
        if (dataset()->positions_) {
          Tensor& positions = tensors->emplace_back(context->allocator({}), tensorflow::DT_INT64,
                                                    TensorShape{count});
          std::copy(places.begin(), places.end(), positions.flat<int64_t>().data());
        }
        return absl::OkStatus();
      }

      const std::shared_ptr<ExampleStore> store_;
      tensorflow::mutex mutex_;
      bool begun_ TF_GUARDED_BY(mutex_) = false;
      ExampleReader::Position next_;
      int64_t looked_ahead_ TF_GUARDED_BY(mutex_) = 0;  // The step up to which examples are wanted.
      std::optional<EpochOrder> order_;
      std::deque<Ahead> ahead_;
    };

    const int64_t number_;
    const std::shared_ptr<ExampleReader> reader_;
    const int64_t read_ahead_;
    const bool batched_;
    const bool positions_;
    const tensorflow::DataTypeVector types_;
    const std::vector<PartialTensorShape> shapes_;
    const ExampleFormat format_;
  };

  bool batched_ = true;
  bool positions_ = false;
  tensorflow::DataTypeVector types_;
  std::vector<PartialTensorShape> shapes_;
};

REGISTER_KERNEL_BUILDER(Name("DearCachedBatchesDataset").Device(tensorflow::DEVICE_CPU),
                        CachedBatchesDatasetOp);

}  // namespace
}  // namespace tfdear
