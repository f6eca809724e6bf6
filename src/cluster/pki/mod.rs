//! Certificates: who signs them, which names they carry, what is wrong with those that are there. No client, no clock and
//! no writing here: only what is right for a cluster at a given time.
//!
//! Each cluster has two authorities, so that nobody who may connect as a client may pass for a member: one signs what
//! members show each other, the other what members and clients show each other.

mod authority;
mod certificate;
mod check;
mod condition;
mod own;
mod secrets;
mod terms;
mod wallet;

use jiff::SignedDuration;

pub use authority::{Authority, IssueError};
pub use certificate::{Certificate, Pair};
pub use check::{Demand, Fault, Span, check};
pub use condition::Certificates;
pub use own::{Faults, OwnSecrets, judge_own, shuts_operator_out};
pub use secrets::{
    MemberKeys, Realm, authority_secret, client_secret, is_strange, judge_client, judge_member, kept_key,
    member_secret, read_authority,
};
pub use terms::{Order, Terms, Usage};
pub use wallet::{Duties, Keyring, Wallet};

/// How far back a certificate's time begins: clocks of nodes differ, and a certificate from the future is refused.
const BACKDATED: SignedDuration = SignedDuration::from_hours(1);

#[cfg(test)]
mod fixture;
