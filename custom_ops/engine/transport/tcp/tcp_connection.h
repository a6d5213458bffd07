// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "custom_ops/engine/transport/channel.h"
#include "custom_ops/engine/transport/streams/byte_stream.h"

namespace tfdear {

// One socket to one peer, which carries frames: a header, and the bytes of a message. For the
// thread that runs collectives; it never waits.
//
// [Note: frames]
// A frame names the message that it carries by 64 bits, in which the collective, its place in the
// program, the tag and the length are mixed. Its bytes go where a receive of that name was posted,
// without a copy. A frame that nobody has asked for yet stays where it is, and with it all behind
// it: the kernel then slows the sender down, and no memory is taken by what a peer sends. Only when
// this rank waits for a message that lies behind it, the frame is put aside. Bytes that begin no
// frame end the connection: a header carries 24 bits that follow from the rest of it.
class TcpConnection {
 public:
  class Header {
   public:
    Header() = default;
    Header(uint64_t name, uint64_t bytes);

    uint64_t name() const { return name_; }
    uint64_t bytes() const { return length_and_check_ & kMostBytes; }
    // Whether it was one before it travelled.
    bool IsSound() const;

   private:
    static constexpr int kLengthBits = 40;
    static constexpr uint64_t kMostBytes = (uint64_t{1} << kLengthBits) - 1;

    uint64_t name_ = 0;
    uint64_t length_and_check_ = 0;
  };
  struct Message : Channel::Message {
    Header header;
    const char* source = nullptr;  // Of one that is sent.
    TcpConnection* connection = nullptr;
    bool done = false;
    std::vector<char> memory;  // Where one arrives that came without a target.
  };

  TcpConnection(int peer, std::unique_ptr<ByteStream> stream);
  TcpConnection(const TcpConnection&) = delete;
  TcpConnection& operator=(const TcpConnection&) = delete;

  int peer() const { return peer_; }
  int socket() const { return stream_->socket(); }

  // Whether the transport has it among those with messages under way, and among those that have
  // sent some.
  bool is_listed = false;
  bool has_sent = false;

  // Messages stay where they are until they are done, or until Forget().
  void Send(Message* message) { sends_.push_back(message); }
  void Receive(Message* message);
  void Forget();

  // What the kernel told of the socket.
  void set_readable() { is_readable_ = true; }
  void set_writable() { is_writable_ = true; }

  // Moves what can be moved now, up to a limit that lets others have their turn. True if anything
  // was.
  bool Advance();
  // Whether there may be more to move without news from the kernel.
  bool HasMore() const;
  // Whether anything is still to be sent or received.
  bool IsBusy() const { return !sends_.empty() || !receives_.empty() || target_ != nullptr; }
  // Puts the frame aside that stands in the way of another one, if one does.
  bool PutAside();

  // Bytes that the kernel has taken and not handed on to the link; 0 where it does not say.
  size_t Unsent() const;

  // Why nothing more will come, or go; empty while it may.
  const std::string& failure() const { return failure_; }
  // Whether the peer left in good order: between frames, owing nothing.
  bool ended_well() const { return ended_well_; }
  // What arrived that nobody asked for, as a clause for messages; or nothing.
  std::string Unexpected() const;

 private:
  // Larger than the frames that have to be fast, and a part of those that have to be many.
  static constexpr size_t kBufferBytes = 16 << 10;

  bool Write();
  bool Read();
  char* Target(size_t* bytes);
  bool Fill(char* target, size_t bytes, size_t* moved);
  bool Match();
  void Complete();
  void Fail(const std::string& what);

  const int peer_;
  const std::unique_ptr<ByteStream> stream_;
  bool is_readable_ = true;
  bool is_writable_ = true;
  std::string failure_;
  bool ended_well_ = false;

  std::deque<Message*> sends_;
  size_t sent_ = 0;  // Of the first one, its header included.

  // Asked for and not there, in the order in which they were; those that came before.
  std::deque<Message*> receives_;
  std::unordered_map<uint64_t, std::vector<char>> aside_;

  // The frame that is arriving.
  Header header_;
  size_t header_bytes_ = 0;
  bool is_matched_ = false;
  Message* target_ = nullptr;  // Null where it is put aside.
  size_t received_ = 0;

  // What was read ahead.
  std::array<char, kBufferBytes> buffer_;
  size_t buffer_begin_ = 0;
  size_t buffer_end_ = 0;
};

}  // namespace tfdear
