// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/framework/types.h"

namespace tfdear {

// How the tensors of an example are one record of bytes, and rows of batches again.
//
// [Note: records of examples]
// Tensors whose bytes are known beforehand come first, each at a place of its own, so that a batch
// is filled without looking at anything else. Then come the others, one after another: their sizes,
// as int64, and their bytes; of strings the lengths, as int64, and then all bytes.
class ExampleFormat {
 public:
  ExampleFormat() = default;
  ExampleFormat(const std::vector<tensorflow::DataType>& types,
                const std::vector<tensorflow::PartialTensorShape>& shapes);

  // Whether tensors are an example; the error says what was expected and received.
  absl::Status Check(const std::vector<tensorflow::Tensor>& tensors) const;

  // Of an example that Check() accepts.
  size_t BytesOf(const std::vector<tensorflow::Tensor>& tensors) const;
  void Write(const std::vector<tensorflow::Tensor>& tensors, char* record) const;

  // The tensors of an example. Large ones are not copied: they hold `owner`, which keeps the
  // record.
  absl::Status Read(const char* record, size_t bytes, std::shared_ptr<const void> owner,
                    std::vector<tensorflow::Tensor>* tensors) const;

  // Whether examples can be rows of a batch: all sizes are known.
  bool IsFixed() const;
  // The shape of a batch's tensor; of a format that IsFixed().
  tensorflow::TensorShape BatchShape(size_t component, int64_t rows) const;
  // Fills a row of all tensors of a batch.
  absl::Status FillRow(const char* record, size_t bytes, int64_t row,
                       std::vector<tensorflow::Tensor>* batch) const;

 private:
  struct Component {
    tensorflow::DataType type;
    tensorflow::PartialTensorShape shape;
    bool fixed;         // Its bytes are known.
    size_t offset = 0;  // Where they are then.
    size_t bytes = 0;
  };

  std::vector<Component> components_;
  size_t fixed_bytes_ = 0;
};

}  // namespace tfdear
