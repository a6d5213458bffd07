// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
// Raw records of files, through TensorFlow's file systems.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/lib/io/record_reader.h"
#include "tensorflow/core/platform/env.h"
#include "tensorflow/core/platform/file_system.h"

namespace tfdear {
namespace {

using tensorflow::OpKernelContext;
using tensorflow::RandomAccessFile;
using tensorflow::Tensor;
using tensorflow::tstring;

class IndexRecordsOp : public tensorflow::OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    const std::string path(context->input(0).scalar<tstring>()());
    tensorflow::uint64 size = 0;
    OP_REQUIRES_OK(context, context->env()->GetFileSize(path, &size));
    std::unique_ptr<RandomAccessFile> file;
    OP_REQUIRES_OK(context, context->env()->NewRandomAccessFile(path, &file));
    tensorflow::io::RecordReader reader(file.get());
    std::vector<int64_t> offsets = {0};
    while (static_cast<tensorflow::uint64>(offsets.back()) < size) {
      tensorflow::uint64 offset = offsets.back();
      int skipped = 0;
      const absl::Status status = reader.SkipRecords(&offset, 1, &skipped);
      OP_REQUIRES(
          context, status.ok() && skipped == 1 && offset <= size,
          absl::DataLossError(absl::StrCat(
              path, ": no record of a TFRecord file begins at byte ", offsets.back(), " of ", size,
              " (", status.message(),
              "). It is cut off, compressed, or no such file; compressed files have no random "
              "access.")));
      offsets.push_back(static_cast<int64_t>(offset));
    }
    Tensor* output = nullptr;
    const int64_t count = offsets.size();
    OP_REQUIRES_OK(context, context->allocate_output(0, {count}, &output));
    std::copy(offsets.begin(), offsets.end(), output->flat<int64_t>().data());
  }
};

class ReadRecordsOp : public tensorflow::OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    const auto paths = context->input(0).flat<tstring>();
    const auto files = context->input(1).flat<int64_t>();
    const auto offsets = context->input(2).flat<int64_t>();
    OP_REQUIRES(context, files.size() == offsets.size(),
                absl::InvalidArgumentError("every record needs a file and an offset"));
    Tensor *records = nullptr, *errors = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, {files.size()}, &records));
    OP_REQUIRES_OK(context, context->allocate_output(1, {files.size()}, &errors));
    struct Opened {
      std::unique_ptr<RandomAccessFile> file;
      std::unique_ptr<tensorflow::io::RecordReader> reader;
      absl::Status status;
    };
    std::vector<Opened> opened(paths.size());
    for (int64_t i = 0; i < files.size(); ++i) {
      OP_REQUIRES(context, files(i) >= 0 && files(i) < paths.size(),
                  absl::InvalidArgumentError("a record names a file that there is not"));
      Opened& open = opened[files(i)];
      if (open.reader == nullptr && open.status.ok()) {
        open.status = context->env()->NewRandomAccessFile(std::string(paths(files(i))), &open.file);
        if (open.status.ok()) {
          open.reader = std::make_unique<tensorflow::io::RecordReader>(open.file.get());
        }
      }
      tensorflow::uint64 offset = offsets(i);
      tstring& record = records->flat<tstring>()(i);
      absl::Status status = open.status;
      if (status.ok()) status = open.reader->ReadRecord(&offset, &record);
      if (status.ok()) continue;
      record.clear();
      errors->flat<tstring>()(i) = std::string(status.message());
    }
  }
};

class ReadFilesOp : public tensorflow::OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    const auto paths = context->input(0).flat<tstring>();
    Tensor *contents = nullptr, *errors = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, {paths.size()}, &contents));
    OP_REQUIRES_OK(context, context->allocate_output(1, {paths.size()}, &errors));
    for (int64_t i = 0; i < paths.size(); ++i) {
      std::string content;
      const absl::Status status =
          tensorflow::ReadFileToString(context->env(), std::string(paths(i)), &content);
      if (status.ok()) {
        contents->flat<tstring>()(i) = content;
      } else {
        errors->flat<tstring>()(i) = std::string(status.message());
      }
    }
  }
};

using tensorflow::DEVICE_CPU;
REGISTER_KERNEL_BUILDER(Name("DearReadFiles").Device(DEVICE_CPU), ReadFilesOp);
REGISTER_KERNEL_BUILDER(Name("DearIndexRecords").Device(DEVICE_CPU), IndexRecordsOp);
REGISTER_KERNEL_BUILDER(Name("DearReadRecords").Device(DEVICE_CPU), ReadRecordsOp);

}  // namespace
}  // namespace tfdear
