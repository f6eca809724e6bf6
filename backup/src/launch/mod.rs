//! The launcher: waits for a ticket, holds the volume against it, and becomes etcd. It never exits while it waits, and
//! never starts etcd on a volume that is not the ticket's.

mod report;

pub use report::{PATH, PORT, Reason, Report, State};
