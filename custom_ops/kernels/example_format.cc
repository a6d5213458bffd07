// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#include "custom_ops/kernels/example_format.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "custom_ops/engine/examples/example_segment.h"
#include "tensorflow/core/framework/allocation_description.pb.h"

namespace tfdear {
namespace {

using tensorflow::DT_STRING;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::tstring;

size_t RoundUp(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

size_t BytesOfElements(tensorflow::DataType type, int64_t elements) {
  return static_cast<size_t>(elements) * tensorflow::DataTypeSize(type);
}

// Writes bytes one after another.
class Writer {
 public:
  explicit Writer(char* to) : to_(to) {}
  void Bytes(const void* from, size_t bytes) {
    if (bytes > 0) std::memcpy(to_, from, bytes);
    to_ += bytes;
  }
  void Number(int64_t number) { Bytes(&number, sizeof(number)); }

 private:
  char* to_;
};

// Reads what a Writer wrote, within bounds: records may come from other processes.
class Reader {
 public:
  Reader(const char* from, size_t bytes) : from_(from), left_(bytes) {}
  // Null: there are not so many bytes.
  const char* Bytes(size_t bytes) {
    if (bytes > left_) return nullptr;
    const char* const begin = from_;
    from_ += bytes;
    left_ -= bytes;
    return begin;
  }
  bool Number(int64_t* number) {
    const char* const bytes = Bytes(sizeof(*number));
    if (bytes != nullptr) std::memcpy(number, bytes, sizeof(*number));
    return bytes != nullptr;
  }

 private:
  const char* from_;
  size_t left_;
};

// The bytes of a tensor within a record, which nobody may write.
class RecordBuffer : public tensorflow::TensorBuffer {
 public:
  RecordBuffer(const char* data, size_t bytes, std::shared_ptr<const void> owner)
      : TensorBuffer(const_cast<char*>(data)), bytes_(bytes), owner_(std::move(owner)) {}
  size_t size() const override { return bytes_; }
  TensorBuffer* root_buffer() override { return this; }
  void FillAllocationDescription(tensorflow::AllocationDescription*) const override {}
  // So no op reuses it for what it returns.
  bool OwnsMemory() const override { return false; }

 private:
  const size_t bytes_;
  const std::shared_ptr<const void> owner_;
};

// A tensor of these bytes of a record.
Tensor TensorOf(tensorflow::DataType type, const TensorShape& shape, const char* data, size_t bytes,
                const std::shared_ptr<const void>& owner) {
  if (bytes > 0 && reinterpret_cast<uintptr_t>(data) % EIGEN_MAX_ALIGN_BYTES == 0) {
    const tensorflow::core::RefCountPtr<tensorflow::TensorBuffer> buffer(
        new RecordBuffer(data, bytes, owner));
    return Tensor(type, shape, buffer.get());
  }
  Tensor tensor(type, shape);
  Writer(static_cast<char*>(tensor.data())).Bytes(data, bytes);
  return tensor;
}

// The texts of a record, one behind the other after their lengths.
bool ReadTexts(Reader* reader, int64_t elements, tstring* texts) {
  Reader lengths = *reader;
  if (reader->Bytes(elements * sizeof(int64_t)) == nullptr) return false;
  for (int64_t i = 0; i < elements; ++i) {
    int64_t length = 0;
    lengths.Number(&length);
    const char* const text = length < 0 ? nullptr : reader->Bytes(static_cast<size_t>(length));
    if (text == nullptr) return false;
    texts[i].assign(text, static_cast<size_t>(length));
  }
  return true;
}

}  // namespace

ExampleFormat::ExampleFormat(const std::vector<tensorflow::DataType>& types,
                             const std::vector<tensorflow::PartialTensorShape>& shapes) {
  for (size_t i = 0; i < types.size(); ++i) {
    Component component{types[i], shapes[i], types[i] != DT_STRING && shapes[i].IsFullyDefined()};
    if (component.fixed) {
      component.bytes = BytesOfElements(types[i], shapes[i].num_elements());
      component.offset = RoundUp(fixed_bytes_, AlignmentOfExample(component.bytes));
      fixed_bytes_ = component.offset + component.bytes;
    }
    components_.push_back(component);
  }
  // What comes behind starts with a number. A record without bytes says that there is no example.
  fixed_bytes_ = RoundUp(std::max<size_t>(fixed_bytes_, 1), sizeof(int64_t));
}

absl::Status ExampleFormat::Check(const std::vector<Tensor>& tensors) const {
  if (tensors.size() != components_.size()) {
    return absl::InvalidArgumentError(absl::StrCat("an example has ", components_.size(),
                                                   " tensors. Received: ", tensors.size()));
  }
  for (size_t i = 0; i < tensors.size(); ++i) {
    const Component& component = components_[i];
    if (tensors[i].dtype() != component.type ||
        !component.shape.IsCompatibleWith(tensors[i].shape())) {
      return absl::InvalidArgumentError(absl::StrCat(
          "tensor ", i, " of an example must be of ", tensorflow::DataTypeString(component.type),
          " and of shape ", component.shape.DebugString(),
          ". Received: ", tensorflow::DataTypeString(tensors[i].dtype()), " of shape ",
          tensors[i].shape().DebugString()));
    }
  }
  return absl::OkStatus();
}

size_t ExampleFormat::BytesOf(const std::vector<Tensor>& tensors) const {
  size_t bytes = fixed_bytes_;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (components_[i].fixed) continue;
    const Tensor& tensor = tensors[i];
    bytes += tensor.dims() * sizeof(int64_t);
    if (tensor.dtype() != DT_STRING) {
      bytes += BytesOfElements(tensor.dtype(), tensor.NumElements());
      continue;
    }
    const auto texts = tensor.flat<tstring>();
    for (int64_t j = 0; j < texts.size(); ++j) bytes += sizeof(int64_t) + texts(j).size();
  }
  return bytes;
}

void ExampleFormat::Write(const std::vector<Tensor>& tensors, char* record) const {
  Writer behind(record + fixed_bytes_);
  for (size_t i = 0; i < tensors.size(); ++i) {
    const Tensor& tensor = tensors[i];
    if (components_[i].fixed) {
      Writer(record + components_[i].offset).Bytes(tensor.data(), components_[i].bytes);
      continue;
    }
    for (int axis = 0; axis < tensor.dims(); ++axis) behind.Number(tensor.dim_size(axis));
    if (tensor.dtype() != DT_STRING) {
      behind.Bytes(tensor.data(), BytesOfElements(tensor.dtype(), tensor.NumElements()));
      continue;
    }
    const auto texts = tensor.flat<tstring>();
    for (int64_t j = 0; j < texts.size(); ++j) behind.Number(texts(j).size());
    for (int64_t j = 0; j < texts.size(); ++j) behind.Bytes(texts(j).data(), texts(j).size());
  }
}

absl::Status ExampleFormat::Read(const char* record, size_t bytes,
                                 std::shared_ptr<const void> owner,
                                 std::vector<Tensor>* tensors) const {
  const absl::Status damaged = absl::DataLossError("the record of an example is damaged");
  if (bytes < fixed_bytes_) return damaged;
  Reader behind(record + fixed_bytes_, bytes - fixed_bytes_);
  for (const Component& component : components_) {
    TensorShape shape;
    if (component.fixed) {
      component.shape.AsTensorShape(&shape);
      tensors->push_back(
          TensorOf(component.type, shape, record + component.offset, component.bytes, owner));
      continue;
    }
    for (int axis = 0; axis < component.shape.dims(); ++axis) {
      int64_t size = 0;
      if (!behind.Number(&size) || !shape.AddDimWithStatus(size).ok()) return damaged;
    }
    // Each element has a byte, and each text a length.
    if (static_cast<size_t>(shape.num_elements()) > bytes) return damaged;
    if (component.type != DT_STRING) {
      const size_t length = BytesOfElements(component.type, shape.num_elements());
      const char* const data = behind.Bytes(length);
      if (data == nullptr) return damaged;
      tensors->push_back(TensorOf(component.type, shape, data, length, owner));
      continue;
    }
    Tensor& texts = tensors->emplace_back(DT_STRING, shape);
    if (!ReadTexts(&behind, shape.num_elements(), texts.flat<tstring>().data())) return damaged;
  }
  return absl::OkStatus();
}

bool ExampleFormat::IsFixed() const {
  for (const Component& component : components_) {
    if (!component.shape.IsFullyDefined()) return false;
  }
  return true;
}

TensorShape ExampleFormat::BatchShape(size_t component, int64_t rows) const {
  TensorShape shape;
  components_[component].shape.AsTensorShape(&shape);
  shape.InsertDim(0, rows);
  return shape;
}

absl::Status ExampleFormat::FillRow(const char* record, size_t bytes, int64_t row,
                                    std::vector<Tensor>* batch) const {
  const absl::Status damaged = absl::DataLossError("the record of an example is too short");
  if (bytes < fixed_bytes_) return damaged;
  Reader behind(record + fixed_bytes_, bytes - fixed_bytes_);
  for (size_t i = 0; i < components_.size(); ++i) {
    const Component& component = components_[i];
    Tensor& tensor = (*batch)[i];
    if (component.fixed) {
      Writer(static_cast<char*>(tensor.data()) + row * component.bytes)
          .Bytes(record + component.offset, component.bytes);
      continue;
    }
    // Strings, of a known shape.
    const int64_t elements = component.shape.num_elements();
    if (behind.Bytes(component.shape.dims() * sizeof(int64_t)) == nullptr) return damaged;
    tstring* const texts = tensor.flat<tstring>().data() + row * elements;
    if (!ReadTexts(&behind, elements, texts)) return damaged;
  }
  return absl::OkStatus();
}

}  // namespace tfdear
