//! The etcd client side of Quorate.
