//! The decisions of Quorate: pure, without Kubernetes, clock or I/O.
