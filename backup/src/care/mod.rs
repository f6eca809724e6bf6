//! What a store needs over time: a look at what is there, proof that it restores, copies, and an end for what is old. It
//! takes no backups.

mod copy;
mod delete;
mod overview;
mod prune;
mod report;
mod verify;

pub use copy::{Copied, CopyError, copy};
pub use delete::{DeleteError, delete};
pub use overview::{Overview, State, keys};
pub use prune::{Keep, Plan, Pruned, Removal, plan, prune};
pub use report::{Proved, Report};
pub use verify::{Verified, VerifyError, verify};
