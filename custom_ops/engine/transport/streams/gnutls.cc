// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#include "custom_ops/engine/transport/streams/gnutls.h"

#include <dlfcn.h>

#include <type_traits>

#include "custom_ops/engine/base/errors.h"

namespace tfdear::gnutls {
namespace {

struct Library {
  Functions functions = {};
  std::string error;
};

Library Open() {
  Library library;
  // Stays open: sessions may outlive whoever asked for the first one.
  void* const handle = dlopen("libgnutls.so.30", RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    library.error = dlerror();
    return library;
  }
  auto find = [&](auto* function, const char* name) {
    void* const address = dlsym(handle, name);
    if (address == nullptr && library.error.empty()) library.error = dlerror();
    *function = reinterpret_cast<std::remove_reference_t<decltype(*function)>>(address);
  };
  Functions& all = library.functions;
  find(&all.init, "gnutls_init");
  find(&all.deinit, "gnutls_deinit");
  find(&all.priority_set_direct, "gnutls_priority_set_direct");
  find(&all.credentials_set, "gnutls_credentials_set");
  find(&all.psk_allocate_client_credentials, "gnutls_psk_allocate_client_credentials");
  find(&all.psk_allocate_server_credentials, "gnutls_psk_allocate_server_credentials");
  find(&all.psk_free_client_credentials, "gnutls_psk_free_client_credentials");
  find(&all.psk_free_server_credentials, "gnutls_psk_free_server_credentials");
  find(&all.psk_set_client_credentials, "gnutls_psk_set_client_credentials");
  find(&all.psk_set_server_credentials_function, "gnutls_psk_set_server_credentials_function");
  find(&all.session_set_ptr, "gnutls_session_set_ptr");
  find(&all.session_get_ptr, "gnutls_session_get_ptr");
  find(&all.transport_set_int2, "gnutls_transport_set_int2");
  find(&all.handshake, "gnutls_handshake");
  find(&all.record_send, "gnutls_record_send");
  find(&all.record_recv, "gnutls_record_recv");
  find(&all.record_check_pending, "gnutls_record_check_pending");
  find(&all.record_get_direction, "gnutls_record_get_direction");
  find(&all.session_key_update, "gnutls_session_key_update");
  find(&all.strerror, "gnutls_strerror");
  find(&all.malloc, "gnutls_malloc");
  return library;
}

}  // namespace

Status Load(const Functions** functions) {
  static const auto* library = new Library(Open());
  if (!library->error.empty()) {
    return Unavailable("TFDEAR_TLS=1 needs GnuTLS 3.6.5 or later, which cannot be loaded: ",
                       library->error, ". Install it (libgnutls30 on Debian and Ubuntu), or use a ",
                       "network that encrypts below TCP");
  }
  *functions = &library->functions;
  return Status();
}

}  // namespace tfdear::gnutls
