//! One case for each thing the state machine decides: a world in a sentence, the plan in another.

#[path = "../scene/mod.rs"]
mod scene;

mod founding;
mod growing;
mod healing;
mod losing;
mod memory;
mod promoting;
mod restarting;
mod resting;
mod shrinking;
mod spares;
