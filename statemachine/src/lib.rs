//! The decisions of Quorate: what is observed goes in, what to do comes out.
//!
//! Pure and synchronous: no Kubernetes types, no clock, no I/O, no panic. Everything that is not known is a value of
//! its own ([`Sight::Unknown`], [`Membership::Unknown`]), never a guess.

mod names;
mod plan;
mod world;

pub use names::{ClusterId, MemberId, Millis, NodeName, Serial, TemplateHash, Uid};
pub use plan::{Bind, Finding, LookAgain, Phase, Plan, Step};
pub use world::{
    Alive, Claim, Entry, Freshness, Home, Ledger, Life, Listed, MemberList, Membership, Memory, NodeSight, Pod,
    PodStage, Refusal, Retention, Role, Seat, Seeding, Sight, Standing, Start, Storage, Ticket, Trouble, Wish, World,
};
