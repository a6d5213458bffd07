// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>

#include "custom_ops/engine/base/status.h"

namespace tfdear::gnutls {

// What TlsStream calls of GnuTLS (3.6.5 or later). The library is loaded when encryption is asked
// for, so that nobody else needs it; its types and numbers are those of its stable interface.

struct Session;      // gnutls_session_int
struct Credentials;  // of either side, for keys that both know
struct Datum {       // gnutls_datum_t
  unsigned char* data;
  unsigned int size;
};

// Flags of gnutls_init().
inline constexpr unsigned kServer = 1, kClient = 1 << 1, kNonblock = 1 << 3, kNoSignal = 1 << 6,
                          kNoTickets = 1 << 10;
inline constexpr int kCredentialsPsk = 4;  // GNUTLS_CRD_PSK
inline constexpr int kRawKey = 0;          // GNUTLS_PSK_KEY_RAW
// Errors after which the same call is made again, one that means that the peer has closed, and
// those of the socket.
inline constexpr int kAgain = -28, kInterrupted = -52, kPrematureTermination = -110,
                     kPushError = -53, kPullError = -54;

using KeyOfUser = int (*)(Session* session, const char* user, Datum* key);

struct Functions {
  int (*init)(Session** session, unsigned flags);
  void (*deinit)(Session* session);
  int (*priority_set_direct)(Session* session, const char* priorities, const char** error);
  int (*credentials_set)(Session* session, int type, Credentials* credentials);
  int (*psk_allocate_client_credentials)(Credentials** credentials);
  int (*psk_allocate_server_credentials)(Credentials** credentials);
  void (*psk_free_client_credentials)(Credentials* credentials);
  void (*psk_free_server_credentials)(Credentials* credentials);
  int (*psk_set_client_credentials)(Credentials* credentials, const char* user, const Datum* key,
                                    int format);
  void (*psk_set_server_credentials_function)(Credentials* credentials, KeyOfUser function);
  void (*session_set_ptr)(Session* session, void* pointer);
  void* (*session_get_ptr)(Session* session);
  void (*transport_set_int2)(Session* session, int receives, int sends);
  int (*handshake)(Session* session);
  ssize_t (*record_send)(Session* session, const void* data, size_t bytes);
  ssize_t (*record_recv)(Session* session, void* data, size_t bytes);
  size_t (*record_check_pending)(Session* session);
  int (*record_get_direction)(Session* session);
  int (*session_key_update)(Session* session, unsigned flags);
  const char* (*strerror)(int error);
  void* (**malloc)(size_t bytes);  // A variable.
};

// The functions, once they are loaded; Unavailable where the library is missing.
Status Load(const Functions** functions);

}  // namespace tfdear::gnutls
