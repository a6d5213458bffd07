// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#include "custom_ops/kernels/example_format.h"

#include <cstdint>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "custom_ops/engine/examples/example_segment.h"

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
  // What comes behind starts with a number.
  fixed_bytes_ = RoundUp(fixed_bytes_, sizeof(int64_t));
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
    Reader lengths = behind;
    if (behind.Bytes(elements * sizeof(int64_t)) == nullptr) return damaged;
    auto texts = tensor.flat<tstring>();
    for (int64_t j = 0; j < elements; ++j) {
      int64_t length = 0;
      lengths.Number(&length);
      const char* const text = length < 0 ? nullptr : behind.Bytes(static_cast<size_t>(length));
      if (text == nullptr) return damaged;
      texts(row * elements + j).assign(text, static_cast<size_t>(length));
    }
  }
  return absl::OkStatus();
}

}  // namespace tfdear
