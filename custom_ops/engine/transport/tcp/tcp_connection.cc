// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#include "custom_ops/engine/transport/tcp/tcp_connection.h"

#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cstring>
#include <exception>

#include "custom_ops/engine/base/errors.h"
#include "custom_ops/engine/base/signature.h"

namespace tfdear {
namespace {

// Before another connection gets its turn: some milliseconds of a fast line.
constexpr size_t kTurnBytes = size_t{1} << 20;
// Frames that one call hands to the kernel.
constexpr size_t kMostFrames = 16;
constexpr char kOtherLength[] = "a message has another length than its name says";

constexpr char kClosed[] = "the connection was closed";
constexpr char kNoFrame[] = "it sent bytes that are no message";
// So that zeros are no header.
constexpr uint64_t kCheckSalt = 0x9e3779b97f4a7c15;

}  // namespace

TcpConnection::Header::Header(uint64_t name, uint64_t bytes)
    : name_(name),
      length_and_check_((MixBits(MixBits(bytes ^ kCheckSalt) ^ name) << kLengthBits) | bytes) {}

bool TcpConnection::Header::IsSound() const {
  return Header(name_, bytes()).length_and_check_ == length_and_check_;
}

TcpConnection::TcpConnection(int peer, std::unique_ptr<ByteStream> stream)
    : peer_(peer), stream_(std::move(stream)) {
  // Where it is none of TCP, as between threads of a test, this does nothing.
  const int on = 1;
  setsockopt(socket(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

void TcpConnection::Receive(Message* message) {
  const auto found = aside_.find(message->header.name());
  if (found == aside_.end()) {
    receives_.push_back(message);
    return;
  }
  const bool arrives_now =
      is_matched_ && target_ == nullptr && header_.name() == message->header.name();
  if ((arrives_now ? header_.bytes() : found->second.size()) != message->bytes) {
    receives_.push_back(message);  // So that whoever waits for it hears of the failure.
    Fail(kOtherLength);
    return;
  }
  std::memcpy(message->target, found->second.data(), arrives_now ? received_ : message->bytes);
  aside_.erase(found);
  if (arrives_now) {
    target_ = message;
  } else {
    message->done = true;
  }
}

void TcpConnection::Forget() {
  // A frame that is half sent, or half received, can be ended by nobody.
  if ((sent_ > 0 || stream_->is_sending()) && failure_.empty()) Fail("a message was given up");
  if (target_ != nullptr && failure_.empty()) Fail("a message was given up");
  sends_.clear();
  receives_.clear();
  sent_ = 0;
}

bool TcpConnection::HasMore() const {
  if (!failure_.empty()) return false;
  if (!sends_.empty() && is_writable_) return true;
  if (header_bytes_ == sizeof(header_) && !is_matched_) {
    return std::any_of(receives_.begin(), receives_.end(), [this](const Message* message) {
      return message->header.name() == header_.name();
    });
  }
  const bool is_wanted = is_matched_ || !receives_.empty();
  return is_wanted && (is_readable_ || buffer_begin_ < buffer_end_);
}

bool TcpConnection::Advance() {
  bool moved = Write();
  moved |= Read();
  return moved;
}

bool TcpConnection::Write() {
  size_t turn = 0;
  while (failure_.empty() && is_writable_ && !sends_.empty() && turn < kTurnBytes) {
    iovec parts[2 * kMostFrames];
    size_t count = 0;
    size_t skip = sent_;
    size_t offered = 0;
    for (size_t i = 0; i < std::min(sends_.size(), kMostFrames) && offered < kTurnBytes; ++i) {
      Message* const message = sends_[i];
      if (skip < sizeof(Header)) {
        parts[count++] = {reinterpret_cast<char*>(&message->header) + skip, sizeof(Header) - skip};
        parts[count++] = {const_cast<char*>(message->source), message->bytes};
      } else {
        const size_t done = skip - sizeof(Header);
        parts[count++] = {const_cast<char*>(message->source) + done, message->bytes - done};
      }
      offered += message->bytes;
      skip = 0;
    }
    size_t written = 0;
    const ByteStream::Result result = stream_->Send(parts, count, &written);
    if (result != ByteStream::Result::kMoved) {
      is_writable_ = false;
      if (result == ByteStream::Result::kEnded) Fail(kClosed);
      if (result == ByteStream::Result::kFailed) Fail(stream_->failure());
      break;
    }
    turn += written;
    for (size_t left = written; left > 0;) {
      Message* const message = sends_.front();
      const size_t part = std::min(left, sizeof(Header) + message->bytes - sent_);
      sent_ += part;
      left -= part;
      if (sent_ == sizeof(Header) + message->bytes) {
        message->done = true;
        sends_.pop_front();
        sent_ = 0;
      }
    }
  }
  return turn > 0;
}

bool TcpConnection::Read() {
  size_t turn = 0;
  while (failure_.empty() && turn < kTurnBytes) {
    if (header_bytes_ < sizeof(header_)) {
      // Nothing is read without need: what a peer sends ahead waits in the kernel.
      if (receives_.empty() && buffer_begin_ == buffer_end_) break;
      char* const target = reinterpret_cast<char*>(&header_) + header_bytes_;
      if (!Fill(target, sizeof(header_) - header_bytes_, &header_bytes_)) break;
      if (header_bytes_ == sizeof(header_) && !header_.IsSound()) Fail(kNoFrame);
      turn += 1;
      continue;
    }
    if (!is_matched_ && !Match()) break;
    if (received_ < header_.bytes()) {
      size_t bytes;
      char* const target = Target(&bytes);
      const size_t before = received_;
      const bool moved = target != nullptr && Fill(target, bytes, &received_);
      turn += received_ - before;
      if (!moved) break;
    }
    if (received_ == header_.bytes()) Complete();
  }
  return turn > 0;
}

// Where the next bytes of the frame go, and how many.
char* TcpConnection::Target(size_t* bytes) {
  *bytes = header_.bytes() - received_;
  if (target_ != nullptr) return target_->target + received_;
  // Takes memory for what is there, not for what a header says.
  *bytes = std::min(*bytes, kTurnBytes);
  std::vector<char>& memory = aside_[header_.name()];
  try {
    if (memory.size() < received_ + *bytes) memory.resize(received_ + *bytes);
  } catch (const std::exception&) {
    Fail("no memory for a message that came before it was asked for");
    return nullptr;
  }
  return memory.data() + received_;
}

// Reads some bytes to there, and what comes behind them to the buffer. False: nothing is there now.
bool TcpConnection::Fill(char* target, size_t bytes, size_t* moved) {
  if (buffer_begin_ == buffer_end_) {
    if (!is_readable_) return false;
    const iovec parts[2] = {{target, bytes}, {buffer_.data(), buffer_.size()}};
    // What follows many bytes is left to the next call: it goes to its own place.
    size_t count = 0;
    switch (stream_->Receive(parts, bytes < buffer_.size() ? 2 : 1, &count)) {
      case ByteStream::Result::kMoved:
        break;
      case ByteStream::Result::kNotNow:
        is_readable_ = false;
        return false;
      case ByteStream::Result::kEnded: {
        const bool is_between = header_bytes_ == 0;
        Fail(kClosed);
        ended_well_ = is_between && !IsBusy();
        return false;
      }
      case ByteStream::Result::kFailed:
        Fail(stream_->failure());
        return false;
    }
    const size_t direct = std::min(count, bytes);
    *moved += direct;
    buffer_begin_ = 0;
    buffer_end_ = count - direct;
    return true;
  }
  const size_t count = std::min(bytes, buffer_end_ - buffer_begin_);
  std::memcpy(target, buffer_.data() + buffer_begin_, count);
  buffer_begin_ += count;
  *moved += count;
  return true;
}

bool TcpConnection::Match() {
  for (auto message = receives_.begin(); message != receives_.end(); ++message) {
    if ((*message)->header.name() != header_.name()) continue;
    if ((*message)->header.bytes() != header_.bytes()) {
      Fail(kOtherLength);
      return false;
    }
    target_ = *message;
    is_matched_ = true;
    receives_.erase(message);
    return true;
  }
  return false;
}

void TcpConnection::Complete() {
  if (target_ != nullptr) target_->done = true;
  target_ = nullptr;
  is_matched_ = false;
  header_bytes_ = 0;
  received_ = 0;
}

bool TcpConnection::PutAside() {
  if (!failure_.empty() || header_bytes_ < sizeof(header_) || is_matched_) return false;
  aside_[header_.name()].clear();
  is_matched_ = true;
  return true;
}

size_t TcpConnection::Unsent() const {
  int bytes = 0;
  return ioctl(socket(), SIOCOUTQNSD, &bytes) == 0 ? static_cast<size_t>(bytes) : 0;
}

std::string TcpConnection::Unexpected() const {
  if (header_bytes_ < sizeof(header_) || is_matched_) return "";
  return TextOf("a message of ", header_.bytes(), " bytes of another collective");
}

void TcpConnection::Fail(const std::string& what) {
  if (failure_.empty()) failure_ = what;
}

}  // namespace tfdear
