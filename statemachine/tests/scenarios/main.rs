//! One case for each thing the state machine decides: a world in a sentence, the plan in another.

#[path = "../scene/mod.rs"]
mod scene;

mod curing;
mod downgrading;
mod draining;
mod founding;
mod growing;
mod healing;
mod losing;
mod memory;
mod promoting;
mod resizing;
mod restarting;
mod resting;
mod restoring;
mod shrinking;
mod spares;
mod upgrading;
