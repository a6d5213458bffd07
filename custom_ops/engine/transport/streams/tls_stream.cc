// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#include "custom_ops/engine/transport/streams/tls_stream.h"

#include <fcntl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "custom_ops/engine/base/errors.h"

namespace tfdear {
namespace {

// Hardware has AES; where it has not, the other one is fast.
constexpr char kPriorities[] =
    "NORMAL:-VERS-ALL:+VERS-TLS1.3:-KX-ALL:+ECDHE-PSK:-CIPHER-ALL:+AES-128-GCM:+CHACHA20-POLY1305";

}  // namespace

Status TlsStream::Create(int socket, const Options& options, std::unique_ptr<TlsStream>* result) {
  const gnutls::Functions* functions = nullptr;
  const Status loaded = gnutls::Load(&functions);
  if (!loaded.ok()) {
    const PlainStream closes(socket);
    return loaded;
  }
  std::unique_ptr<TlsStream> stream(new TlsStream(socket, options, *functions));
  TFDEAR_RETURN_IF_ERROR(stream->Start());
  *result = std::move(stream);
  return Status();
}

TlsStream::TlsStream(int socket, const Options& options, const gnutls::Functions& functions)
    : ByteStream(socket), options_(options), functions_(functions) {}

TlsStream::~TlsStream() {
  if (session_ != nullptr) functions_.deinit(session_);
  if (credentials_ == nullptr) return;
  if (options_.is_client) {
    functions_.psk_free_client_credentials(credentials_);
  } else {
    functions_.psk_free_server_credentials(credentials_);
  }
}

Status TlsStream::Start() {
  auto check = [this](int code) {
    return code < 0 ? Unavailable("cannot begin TLS: ", functions_.strerror(code)) : Status();
  };
  if (fcntl(socket(), F_SETFL, fcntl(socket(), F_GETFL) | O_NONBLOCK) != 0) {
    return Unavailable("cannot begin TLS: ", std::strerror(errno));
  }
  const unsigned side = options_.is_client ? gnutls::kClient : gnutls::kServer;
  TFDEAR_RETURN_IF_ERROR(check(functions_.init(
      &session_, side | gnutls::kNonblock | gnutls::kNoSignal | gnutls::kNoTickets)));
  TFDEAR_RETURN_IF_ERROR(check(functions_.priority_set_direct(session_, kPriorities, nullptr)));
  functions_.session_set_ptr(session_, this);
  if (options_.is_client) {
    TFDEAR_RETURN_IF_ERROR(check(functions_.psk_allocate_client_credentials(&credentials_)));
    std::string key = options_.key;
    const gnutls::Datum datum = {reinterpret_cast<unsigned char*>(key.data()),
                                 static_cast<unsigned>(key.size())};
    TFDEAR_RETURN_IF_ERROR(check(functions_.psk_set_client_credentials(
        credentials_, options_.name.c_str(), &datum, gnutls::kRawKey)));
  } else {
    TFDEAR_RETURN_IF_ERROR(check(functions_.psk_allocate_server_credentials(&credentials_)));
    functions_.psk_set_server_credentials_function(credentials_, &TlsStream::KeyOfUser);
  }
  TFDEAR_RETURN_IF_ERROR(
      check(functions_.credentials_set(session_, gnutls::kCredentialsPsk, credentials_)));
  functions_.transport_set_int2(session_, socket(), socket());
  return Status();
}

int TlsStream::KeyOfUser(gnutls::Session* session, const char* user, gnutls::Datum* key) {
  const gnutls::Functions* functions = nullptr;
  if (!gnutls::Load(&functions).ok()) return -1;
  const auto* const stream = static_cast<TlsStream*>(functions->session_get_ptr(session));
  // See [Note: which connection].
  if (user == nullptr || stream->options_.name != user) return -1;
  const std::string& own = stream->options_.key;
  key->data = static_cast<unsigned char*>((*functions->malloc)(own.size()));
  if (key->data == nullptr) return -1;
  std::memcpy(key->data, own.data(), own.size());
  key->size = static_cast<unsigned>(own.size());
  return 0;
}

ByteStream::Result TlsStream::ResultOf(const char* what, int code) {
  if (code == gnutls::kAgain) return Result::kNotNow;
  // Whether anything is missing is known by who reads frames.
  if (code == 0 || code == gnutls::kPrematureTermination) return Result::kEnded;
  const bool is_line = code == gnutls::kPushError || code == gnutls::kPullError;
  return Fail(TextOf(what, " by TLS: ", functions_.strerror(code)), !is_line);
}

ByteStream::Result TlsStream::ShakeHands() {
  int code;
  do {
    code = functions_.handshake(session_);
  } while (code == gnutls::kInterrupted);
  if (code == 0) return Result::kMoved;
  return ResultOf("meeting", code);
}

bool TlsStream::wants_to_write() const { return functions_.record_get_direction(session_) == 1; }

ByteStream::Result TlsStream::Send(const iovec* parts, size_t count, size_t* moved) {
  if (record_bytes_ == 0) {
    for (size_t i = 0; i < count && record_bytes_ < kRecordBytes; ++i) {
      const size_t bytes = std::min(parts[i].iov_len, kRecordBytes - record_bytes_);
      std::memcpy(record_.data() + record_bytes_, parts[i].iov_base, bytes);
      record_bytes_ += bytes;
    }
  }
  // A record that is under way is not looked at again: the library has it, encrypted.
  ssize_t sent;
  do {
    sent = functions_.record_send(session_, record_.data(), record_bytes_);
  } while (sent == gnutls::kInterrupted);
  if (sent <= 0) return sent == 0 ? Result::kNotNow : ResultOf("sending", static_cast<int>(sent));
  // All of it, unless the peer takes shorter records: then the rest is offered again.
  *moved = sent;
  record_bytes_ = 0;
  return Result::kMoved;
}

ByteStream::Result TlsStream::UpdateKey() {
  const int code = functions_.session_key_update(session_, 0);
  return code == 0 ? Result::kMoved : ResultOf("taking a fresh key", code);
}

bool TlsStream::has_more() const { return functions_.record_check_pending(session_) > 0; }

// More to read, or that nothing more comes.
bool TlsStream::IsReadable() const {
  char byte;
  const ssize_t peeked = recv(socket(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  return peeked >= 0 || (errno != EAGAIN && errno != EWOULDBLOCK);
}

ByteStream::Result TlsStream::Receive(const iovec* parts, size_t count, size_t* moved) {
  *moved = 0;
  for (size_t i = 0; i < count; ++i) {
    // Without waiting for another record: what is decrypted already.
    if (i > 0 && functions_.record_check_pending(session_) == 0) break;
    ssize_t read;
    do {
      read = functions_.record_recv(session_, parts[i].iov_base, parts[i].iov_len);
      // So it also answers what carries no data, such as a fresh key, with more behind it: of which
      // the kernel does not tell again.
    } while (read == gnutls::kInterrupted || (read == gnutls::kAgain && IsReadable()));
    if (read <= 0) {
      if (*moved > 0) break;  // Told again by the next call.
      return ResultOf("receiving", static_cast<int>(read));
    }
    *moved += read;
    if (static_cast<size_t>(read) < parts[i].iov_len) break;
  }
  return Result::kMoved;
}

Status OpenStream(int socket, const TlsStream::Options& options,
                  std::unique_ptr<ByteStream>* result) {
  if (options.key.empty()) {
    *result = std::make_unique<PlainStream>(socket);
    return Status();
  }
  std::unique_ptr<TlsStream> encrypted;
  TFDEAR_RETURN_IF_ERROR(TlsStream::Create(socket, options, &encrypted));
  *result = std::move(encrypted);
  return Status();
}

}  // namespace tfdear
