// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <string>

#include "custom_ops/engine/base/status.h"
#include "custom_ops/engine/transport/streams/byte_stream.h"
#include "custom_ops/engine/transport/streams/gnutls.h"

namespace tfdear {

// The bytes of a socket by TLS 1.3, with a key that both sides know and an exchange of fresh ones:
// nobody on the way reads them, then or later, or changes one unnoticed.
//
// [Note: which connection]
// All connections of a job have one key, which no other job has. Each has a name, which its
// handshake proves too: that of two ranks in a group is not accepted in place of another.
class TlsStream : public ByteStream {
 public:
  struct Options {
    bool is_client = false;
    std::string key;   // Of the job.
    std::string name;  // The same on both sides.
  };

  // Takes over a connected socket in any case.
  static Status Create(int socket, const Options& options, std::unique_ptr<TlsStream>* result);
  ~TlsStream() override;

  Result ShakeHands() override;
  bool wants_to_write() const override;
  Result Send(const iovec* parts, size_t count, size_t* moved) override;
  Result Receive(const iovec* parts, size_t count, size_t* moved) override;
  bool has_more() const override;
  bool is_sending() const override { return record_bytes_ > 0; }

  // Takes a fresh key for what is sent from now on, as the library does by itself now and then.
  Result UpdateKey();

 private:
  static constexpr size_t kRecordBytes = 16 << 10;  // TLS has none that is longer.

  TlsStream(int socket, const Options& options, const gnutls::Functions& functions);
  Status Start();
  static int KeyOfUser(gnutls::Session* session, const char* user, gnutls::Datum* key);
  Result ResultOf(const char* what, int code);
  bool IsReadable() const;

  const Options options_;
  const gnutls::Functions& functions_;
  gnutls::Session* session_ = nullptr;
  gnutls::Credentials* credentials_ = nullptr;
  // A record that is being sent: its bytes count as moved when all of it has gone.
  std::array<char, kRecordBytes> record_;
  size_t record_bytes_ = 0;
};

// In the clear where there is no key. Takes over a connected socket in any case.
Status OpenStream(int socket, const TlsStream::Options& options,
                  std::unique_ptr<ByteStream>* result);

}  // namespace tfdear
