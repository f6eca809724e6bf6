//! What mends a member that is down for what it is told to run, while the versions are on their way.

use quorate_statemachine::{Finding, Trouble, Version};

use crate::scene::{Scene, cluster};

const V7: Version = Version::new(7, 3);

/// Three that run 3.6, and 3.7 wished for, tried everywhere.
fn begun() -> Scene {
    cluster(3).wish_version(V7).asked().all_tried(V7)
}

/// Else what a member was just given to mend it would be taken for what it fails on.
#[test]
fn a_status_from_before_the_switch_is_no_failure() {
    let switched = || begun().told(2, V7).crashing(2).switching(2);
    switched().ticket_age(2, 1_000).plan().never("switch").tells(2, Finding::ContainerFailing);
    switched().ticket_age(2, 61_000).plan().also_does("switch 2 to 3.6.16");
    // Of a pod that had no container there is none to tell it by.
    let pending = || begun().told(2, V7).pod_pending(2, 1_000).trouble(2, Trouble::ImageMissing);
    pending().ticket_age(2, 2_000).plan().never("switch");
    pending().ticket_age(2, 20_000).plan().also_does("switch 2 to 3.6.16");
    // Once its own container is there, what is said is said of that.
    begun().told(2, V7).crashing(2).ticket_age(2, 1_000).plan().also_does("switch 2 to 3.6.16");
}
