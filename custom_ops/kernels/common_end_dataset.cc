// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
// A data set of tf.data that ends on all ranks in the same step, whatever each of them has.
#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "custom_ops/engine/engine.h"
#include "custom_ops/kernels/conversions.h"
#include "tensorflow/core/framework/cancellation.h"
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
namespace data = tensorflow::data;

constexpr char kPosition[] = "position";
constexpr char kEnded[] = "ended";
constexpr char kComponents[] = "components";  // Of the batch that was read ahead; -1: none was.
constexpr char kPresent[] = "present";

std::string ComponentKey(size_t index) { return absl::StrCat("component_", index); }

// How many ranks have a batch: one sum, which outlives the iterator that asked for it.
class Sum {
 public:
  explicit Sum(bool own) : ranks_(own ? 1 : 0) {}

  // Takes the next place in the lane. All ranks do so for the same batch, or wait for each other
  // and are told what the others wait for.
  static absl::Status Start(const std::shared_ptr<Sum>& sum, int64_t data_set, int64_t batch) {
    std::shared_ptr<SingleCollective> collective;
    Lane* lane = nullptr;
    TF_RETURN_IF_ERROR(
        ToAbsl(Engine::Get()->OpenCollective(LaneKind::kLengths, &collective, &lane)));
    // `collective` is kept until the end: nobody else holds it once it was issued.
    collective->Start(
        std::make_shared<Signature>(absl::StrCat("sum of the ranks that have batch ", batch,
                                                 " of their own data set ", data_set)),
        [sum](CollectiveBackend* backend, const Signature& signature, uint64_t sequence) {
          return backend->AllReduce(&sum->ranks_, 1, DataType::kInt64, signature, sequence);
        },
        [sum, collective](const Status& status) { sum->Finish(status); });
    return absl::OkStatus();
  }

  // Waits for the sum, which ends in any case: a collective has a deadline.
  absl::Status Wait(tensorflow::CancellationManager* manager, const std::string& name,
                    int64_t* ranks) {
    {
      tensorflow::mutex_lock lock(mutex_);
      if (done_) return Result(ranks);
    }
    std::function<void()> deregister = [] {};
    TF_RETURN_IF_ERROR(tensorflow::RegisterCancellationCallback(
        manager, [this] { Cancel(); }, &deregister));
    const int64_t wait = Engine::Get()->waits()->Begin(name);
    absl::Status status;
    {
      tensorflow::mutex_lock lock(mutex_);
      while (!done_ && !cancelled_) changed_.wait(lock);
      status = done_ ? Result(ranks) : absl::CancelledError("the step was cancelled");
      cancelled_ = false;
    }
    Engine::Get()->waits()->End(wait);
    deregister();
    return status;
  }

 private:
  absl::Status Result(int64_t* ranks) TF_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    *ranks = ranks_;
    return status_;
  }

  void Finish(const Status& status) {
    tensorflow::mutex_lock lock(mutex_);
    done_ = true;
    status_ = ToAbsl(status);
    changed_.notify_all();
  }

  void Cancel() {
    tensorflow::mutex_lock lock(mutex_);
    cancelled_ = true;
    changed_.notify_all();
  }

  int64_t ranks_;  // Of the group until `done_`.
  tensorflow::mutex mutex_;
  tensorflow::condition_variable changed_;
  bool done_ TF_GUARDED_BY(mutex_) = false;
  bool cancelled_ TF_GUARDED_BY(mutex_) = false;
  absl::Status status_ TF_GUARDED_BY(mutex_);
};

// [Note: Who has more is asked one batch ahead]
// Ranks with data of their own must end an epoch in the same step, and none knows how many batches
// the others have. With every batch that an iterator gives out, it reads the next one and starts
// the sum of the ranks that have that one; the sum is needed when the next batch is asked for, a
// step later. All this happens where the batch is asked for, never on a thread that reads ahead:
// scripts ask for batches in the same order on all ranks, and this order is that of the lane.
class CommonEndDatasetOp : public data::UnaryDatasetOpKernel {
 public:
  explicit CommonEndDatasetOp(OpKernelConstruction* context) : UnaryDatasetOpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("output_types", &types_));
    OP_REQUIRES_OK(context, context->GetAttr("output_shapes", &shapes_));
  }

 protected:
  void MakeDataset(OpKernelContext* context, data::DatasetBase* input,
                   data::DatasetBase** output) override {
    int64_t number = 0;
    OP_REQUIRES_OK(context, data::ParseScalarArgument<int64_t>(context, "data_set", &number));
    const tensorflow::DataTypeVector& given = input->output_dtypes();
    OP_REQUIRES(context,
                given.size() == types_.size() + 1 && given.back() == tensorflow::DT_BOOL &&
                    std::equal(types_.begin(), types_.end(), given.begin()),
                absl::InvalidArgumentError("the last component of an element must say whether it "
                                           "is there, and the others have the output's types"));
    *output = new Dataset(context, input, number, types_, shapes_);
  }

 private:
  class Dataset : public data::DatasetBase {
   public:
    Dataset(OpKernelContext* context, const DatasetBase* input, int64_t number,
            const tensorflow::DataTypeVector& types, const std::vector<PartialTensorShape>& shapes)
        : DatasetBase(data::DatasetContext(context)),
          input_(input),
          number_(number),
          types_(types),
          shapes_(shapes) {
      input_->Ref();
    }
    ~Dataset() override { input_->Unref(); }

    std::unique_ptr<data::IteratorBase> MakeIteratorInternal(
        const std::string& prefix) const override {
      return std::make_unique<Iterator>(
          Iterator::Params{this, absl::StrCat(prefix, "::DearCommonEnd")});
    }

    const tensorflow::DataTypeVector& output_dtypes() const override { return types_; }
    const std::vector<PartialTensorShape>& output_shapes() const override { return shapes_; }
    std::string DebugString() const override { return "DearCommonEndDatasetOp::Dataset"; }
    int64_t CardinalityInternal(data::CardinalityOptions) const override {
      return data::kUnknownCardinality;
    }
    absl::Status InputDatasets(std::vector<const DatasetBase*>* inputs) const override {
      inputs->push_back(input_);
      return absl::OkStatus();
    }
    absl::Status CheckExternalState() const override { return input_->CheckExternalState(); }

   protected:
    absl::Status AsGraphDefInternal(data::SerializationContext* context,
                                    DatasetGraphDefBuilder* builder,
                                    tensorflow::Node** output) const override {
      tensorflow::Node *input, *number;
      TF_RETURN_IF_ERROR(builder->AddInputDataset(context, input_, &input));
      TF_RETURN_IF_ERROR(builder->AddScalar(number_, &number));
      return builder->AddDataset(this, {input, number}, output);
    }

   private:
    // What the input had next.
    struct Batch {
      std::vector<Tensor> components;
      bool present = true;
      absl::Status status;  // An error is raised when its turn has come, not a batch before.
    };

    class Iterator : public data::DatasetIterator<Dataset> {
     public:
      explicit Iterator(const Params& params) : DatasetIterator<Dataset>(params) {}

      absl::Status Initialize(data::IteratorContext* context) override {
        return dataset()->input_->MakeIterator(context, this, prefix(), &input_);
      }

      absl::Status GetNextInternal(data::IteratorContext* context, std::vector<Tensor>* batch,
                                   bool* end_of_sequence) override {
        tensorflow::mutex_lock lock(mutex_);
        *end_of_sequence = ended_;
        if (ended_) return absl::OkStatus();
        if (!next_.has_value()) Read(context);
        if (sum_ == nullptr) TF_RETURN_IF_ERROR(Ask());
        int64_t ranks = 0;
        TF_RETURN_IF_ERROR(sum_->Wait(context->cancellation_manager(), name_, &ranks));
        Batch current = *std::exchange(next_, std::nullopt);
        sum_.reset();
        if (ranks == 0) {
          ended_ = *end_of_sequence = true;
          return absl::OkStatus();
        }
        ++position_;
        Read(context);
        TF_RETURN_IF_ERROR(Ask());
        *batch = std::move(current.components);
        return current.status;
      }

      bool SymbolicCheckpointCompatible() const override { return true; }

     protected:
      std::shared_ptr<data::model::Node> CreateNode(data::IteratorContext*,
                                                    data::model::Node::Args args) const override {
        return data::model::MakeKnownRatioNode(std::move(args), /*ratio=*/1);
      }

      absl::Status SaveInternal(data::SerializationContext* context,
                                data::IteratorStateWriter* writer) override {
        tensorflow::mutex_lock lock(mutex_);
        TF_RETURN_IF_ERROR(SaveInput(context, writer, input_));
        TF_RETURN_IF_ERROR(writer->WriteScalar(prefix(), kPosition, position_));
        TF_RETURN_IF_ERROR(writer->WriteScalar(prefix(), kEnded, int64_t{ended_}));
        const int64_t components =
            next_.has_value() ? static_cast<int64_t>(next_->components.size()) : -1;
        TF_RETURN_IF_ERROR(writer->WriteScalar(prefix(), kComponents, components));
        if (!next_.has_value()) return absl::OkStatus();
        TF_RETURN_IF_ERROR(next_->status);
        TF_RETURN_IF_ERROR(writer->WriteScalar(prefix(), kPresent, int64_t{next_->present}));
        for (size_t i = 0; i < next_->components.size(); ++i) {
          TF_RETURN_IF_ERROR(writer->WriteTensor(prefix(), ComponentKey(i), next_->components[i]));
        }
        return absl::OkStatus();
      }

      absl::Status RestoreInternal(data::IteratorContext* context,
                                   data::IteratorStateReader* reader) override {
        tensorflow::mutex_lock lock(mutex_);
        TF_RETURN_IF_ERROR(RestoreInput(context, reader, input_));
        int64_t ended = 0, components = 0, present = 0;
        TF_RETURN_IF_ERROR(reader->ReadScalar(prefix(), kPosition, &position_));
        TF_RETURN_IF_ERROR(reader->ReadScalar(prefix(), kEnded, &ended));
        TF_RETURN_IF_ERROR(reader->ReadScalar(prefix(), kComponents, &components));
        ended_ = ended != 0;
        next_.reset();
        sum_.reset();  // All ranks restore, and ask again.
        if (components < 0) return absl::OkStatus();
        TF_RETURN_IF_ERROR(reader->ReadScalar(prefix(), kPresent, &present));
        if (components != static_cast<int64_t>(dataset()->types_.size())) {
          return absl::InvalidArgumentError(
              absl::StrCat("this checkpoint is of another data set: its batches have ", components,
                           " components, those of this data set ", dataset()->types_.size()));
        }
        Batch restored;
        restored.present = present != 0;
        restored.components.resize(components);
        for (int64_t i = 0; i < components; ++i) {
          TF_RETURN_IF_ERROR(reader->ReadTensor(context->flr(), prefix(), ComponentKey(i),
                                                &restored.components[i]));
        }
        next_ = std::move(restored);
        return absl::OkStatus();
      }

     private:
      void Read(data::IteratorContext* context) TF_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        Batch& next = next_.emplace();
        bool end = false;
        next.status = input_->GetNext(context, &next.components, &end);
        if (next.status.ok() && end) {
          next.status = absl::InternalError("what a rank has after its last batch has ended");
        }
        if (!next.status.ok()) return;
        next.present = next.components.back().scalar<bool>()();
        next.components.pop_back();
      }

      absl::Status Ask() TF_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        auto sum = std::make_shared<Sum>(next_->present);
        TF_RETURN_IF_ERROR(Sum::Start(sum, dataset()->number_, position_));
        sum_ = std::move(sum);
        return absl::OkStatus();
      }

      const std::string name_ = "whether any rank has another batch";  // Of what waits.
      tensorflow::mutex mutex_;
      std::unique_ptr<data::IteratorBase> input_ TF_GUARDED_BY(mutex_);
      int64_t position_ TF_GUARDED_BY(mutex_) = 0;  // Of the next batch.
      bool ended_ TF_GUARDED_BY(mutex_) = false;
      std::optional<Batch> next_ TF_GUARDED_BY(mutex_);
      std::shared_ptr<Sum> sum_ TF_GUARDED_BY(mutex_);  // Of the ranks that have it.
    };

    const DatasetBase* const input_;
    const int64_t number_;
    const tensorflow::DataTypeVector types_;
    const std::vector<PartialTensorShape> shapes_;
  };

  tensorflow::DataTypeVector types_;
  std::vector<PartialTensorShape> shapes_;
};

REGISTER_KERNEL_BUILDER(Name("DearCommonEndDataset").Device(tensorflow::DEVICE_CPU),
                        CommonEndDatasetOp);

}  // namespace
}  // namespace tfdear
