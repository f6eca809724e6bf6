//! The agent as users meet it: the real binary, as a process, and what real etcd leaves on a volume.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking, in its helpers too")]

mod launch;
mod logs;
#[path = "../../../etcd/tests/ports/mod.rs"]
mod ports;
mod process;
mod push;
mod real_etcd;
mod trial;
