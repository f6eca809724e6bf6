//! Addresses for the tests' own etcds, in every crate that starts some.

use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicU32, Ordering};

/// An address that nobody listens on, and that stays free while an etcd is down: below the ports that connections to
/// elsewhere are given (`ip_local_port_range`), of which the system may hand out any a moment later. Each call gives
/// another.
pub fn free_address() -> SocketAddr {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    loop {
        let number = std::process::id().wrapping_mul(97).wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed));
        let port = u16::try_from(20_000 + number % 10_000).unwrap();
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        if TcpListener::bind(address).is_ok() {
            return address;
        }
    }
}
