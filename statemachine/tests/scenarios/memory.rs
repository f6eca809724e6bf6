//! What the status holds, or does not hold any more.

use quorate_statemachine::{Finding, Ledger, LookAgain, Memory, Phase};

use crate::scene::{cluster, founding, wished};

#[test]
fn a_lost_status_over_living_volumes_seeds_nothing() {
    let told = cluster(3).memory(Memory::Blank).unknown().plan().does([]).keeps_ledger();
    let told = told.phase(Phase::Failed).tells_all(Finding::LedgerMissing).looks(LookAgain::Later);
    assert!(told.plan.needs_fresh_look());
    founding(1).memory(Memory::Blank).plan().does([]).tells_all(Finding::LedgerMissing);
    // A ledger from before the volumes were made is none.
    let set_back = cluster(3).memory(Memory::Ledger(Ledger::default()));
    for serial in 0..3 {
        let hibernated = set_back.clone().unknown().pod_gone(serial);
        hibernated.plan().does([]).phase(Phase::Failed).tells_all(Finding::LedgerMissing);
    }
    founding(1).pod_gone(0).memory(Memory::Blank).plan().does([]).tells_all(Finding::LedgerMissing);
}

#[test]
fn an_unreadable_ledger_stops_everything() {
    let told = cluster(3).pod_gone(1).memory(Memory::Unreadable).plan().does([]).keeps_ledger();
    told.phase(Phase::Failed).tells_all(Finding::LedgerUnreadable);
}

#[test]
fn claims_of_an_earlier_cluster_stop_the_founding() {
    let told = wished(3).claim_of_another(0).plan().does([]).keeps_ledger();
    told.phase(Phase::Failed).tells_all(Finding::VolumesOfAnother);
}

#[test]
fn an_etcd_that_answers_before_the_founding_is_not_ours() {
    let told = cluster(1).seat_gone(0).memory(Memory::Blank).plan().does([]).keeps_ledger();
    told.phase(Phase::Failed).tells_all(Finding::MembersOfAnother);
}
