//! The etcd client side of Quorate: membership calls, what a member says of itself, and plain HTTP. It observes and
//! performs single calls; it decides nothing and knows nothing of Kubernetes.
//!
//! Three ports, three ways to ask:
//! - the client port (2379), by [`Pool`] and [`MemberClient`]: answers only once the member has published itself, which
//!   takes a quorum;
//! - the peer port (2380), by [`peer`]: answers without a quorum, and in plain text only where a cluster has no TLS;
//! - the metrics port (2381), by [`look`]: answers from the first moment on, be it the launcher or etcd, always in plain
//!   text.

mod access;
mod credentials;
mod error;
mod gauges;
mod ids;
mod list;
mod member;
pub mod peer;
pub mod plain_http;
mod pool;
mod sight;

pub use access::{Access, Endpoint};
pub use credentials::{Credentials, CredentialsError, Pem};
pub use error::{Call, CallError, Refusal};
pub use gauges::{Gauges, GaugesReader};
pub use ids::{ClusterId, MemberId};
pub use list::{Member, MemberList};
pub use member::{Added, CHANGE_DEADLINE, MemberClient, Status};
pub use pool::Pool;
pub use sight::{Link, Listener, Role, Sight, Silence, Vitals, is_ready, look, who_listens};
