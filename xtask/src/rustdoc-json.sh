#!/bin/sh
# rustdoc, with its output as JSON: an unstable option, which no compiled code depends on.
RUSTC_BOOTSTRAP=1 exec rustdoc "$@"
