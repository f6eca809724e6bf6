//! The decisions of Quorate: what is observed goes in, what to do comes out.
//!
//! Pure and synchronous: no Kubernetes types, no clock, no I/O, no panic. Everything that is not known is a value of
//! its own ([`Sight::Unknown`], [`Membership::Unknown`]), never a guess.
//!
//! To read it: `world.rs` and `plan.rs` have the words, `decide.rs` drives, and each job has a file of its own: found,
//! restore, keep, spares, grow, shrink, leave, settle, roll (with trial, snapshot, course and cure), resize, evade, budget,
//! endure (without etcd's answer), sleep, delete. `member.rs`, `census.rs` and `version.rs` answer the questions they ask,
//! `mirror.rs` writes down what etcd says, `report.rs` tells the rest.

mod budget;
mod census;
mod course;
mod cure;
mod decide;
mod delete;
mod draft;
mod endure;
mod evade;
mod found;
mod grow;
mod keep;
mod leave;
mod ledger;
mod member;
mod mirror;
mod names;
mod plan;
mod report;
mod resize;
mod restore;
mod roll;
mod settle;
mod shrink;
mod sleep;
mod snapshot;
mod spares;
mod trial;
mod version;
mod world;

use course::Leg;

pub use census::{START_PATIENCE_MS, is_near};
pub use decide::plan;
pub use ledger::{Entry, Failed, Ledger, Memory, Seeding, Standing};
pub use names::{ClusterId, Mark, MemberId, Millis, NodeName, Serial, TemplateHash, Uid};
pub use plan::{Bind, Birth, Finding, LookAgain, Phase, Plan, Step};
pub use version::{
    FIRST_WITH_NEW_LOG, FIRST_WITHOUT_OLD_LOG, FLOORS, Floor, Image, Minor, Release, STOPS, Version, floor,
    max_learners,
};
pub use world::{
    Alarm, Alive, Claim, Freshness, Home, Life, Link, Listed, MemberList, Membership, NodeSight, Origin, Outcome,
    Overall, Pod, PodStage, Readiness, Refusal, Resize, Restore, Retention, Role, RoleLabel, Roster, Saved, Seat,
    Sight, Start, Storage, Ticket, Trial, Trouble, Wish, World,
};
