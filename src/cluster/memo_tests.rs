//! Tests of what is remembered between two rounds.

use quorate_crds::EtcdClusterSpec;
use quorate_statemachine::RoleLabel;

use super::*;

fn version(number: u32) -> Arc<EtcdCluster> {
    let mut cluster = EtcdCluster::new("db", EtcdClusterSpec::default());
    cluster.metadata.uid = Some("u".into());
    cluster.metadata.resource_version = Some(number.to_string());
    Arc::new(cluster)
}

#[test]
fn our_own_writes_count_until_the_watch_shows_something_else() {
    let mut memo = Memo::new(&version(1));
    memo.wrote(&version(1), &version(2));
    memo.wrote(&version(2), &version(3));
    assert_eq!(memo.newest(version(1)), version(3), "the watch lags");
    assert_eq!(memo.newest(version(2)), version(3), "the watch lags less");
    assert_eq!(memo.newest(version(3)), version(3), "the watch has caught up");
    assert_eq!(memo.newest(version(2)), version(2), "nothing is remembered any more");
}

#[test]
fn a_change_by_somebody_else_is_newer_than_what_we_wrote() {
    let mut memo = Memo::new(&version(1));
    memo.wrote(&version(1), &version(2));
    assert_eq!(memo.newest(version(9)), version(9));
    memo.wrote(&version(9), &version(9));
    assert_eq!(memo.newest(version(9)), version(9));
}

#[test]
fn a_pod_whose_object_goes_in_a_moment_is_a_moment_of_silence() {
    let silent = |leaving: Leaving| {
        let mut observed = report::fixture::healthy();
        let (phase, observed_generation) = (Some(quorate_crds::Phase::Running), observed.cluster.metadata.generation);
        let status = EtcdClusterStatus { phase, observed_generation, ..EtcdClusterStatus::default() };
        observed.cluster = Arc::new(EtcdCluster { status: Some(status), ..(*observed.cluster).clone() });
        observed.pods.get_mut(&Serial(1)).unwrap().leaving = leaving;
        let mut plan = quorate_statemachine::plan(&observed.world);
        (plan.steps, plan.ledger, plan.phase) = (Vec::new(), None, Phase::Healing);
        Memo::new(&version(1)).is_moment_of_silence(&observed, &plan)
    };
    assert!(silent(Leaving::AtOnce));
    assert!(!silent(Leaving::InGrace), "that takes a while, and is told");
    assert!(!silent(Leaving::No));
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_goes_at_once_is_awaited_for_a_moment_and_no_longer() {
    let mut memo = Memo::new(&version(1));
    assert!(!memo.awaits_who_goes(false));
    assert!(memo.awaits_who_goes(true));
    tokio::time::advance(GOING).await;
    assert!(!memo.awaits_who_goes(true), "somebody holds it");
    assert!(!memo.awaits_who_goes(false));
    assert!(memo.awaits_who_goes(true), "it is another one");
}

#[tokio::test(start_paused = true)]
async fn an_etcd_that_has_ended_is_left_to_its_kubelet_for_a_moment_and_no_longer() {
    let mut memo = Memo::new(&version(1));
    assert!(!memo.awaits_who_ended(false));
    assert!(memo.awaits_who_ended(true));
    tokio::time::advance(RESTARTS / 2).await;
    assert!(memo.awaits_who_ended(false), "it has been started, and takes a moment");
    tokio::time::advance(RESTARTS / 2).await;
    assert!(!memo.awaits_who_ended(true), "its kubelet does not start it");
    tokio::time::advance(RESTARTS).await;
    assert!(!memo.awaits_who_ended(true) && !memo.awaits_who_ended(false));
    assert!(memo.awaits_who_ended(true), "it has ended again");
}

#[tokio::test(start_paused = true)]
async fn what_was_seen_too_long_ago_or_in_another_term_is_not_gone_on_with() {
    let seen = crate::cluster::report::fixture::healthy().said.seen;
    let goes_on = async |passed: Duration, term: Option<u64>| {
        let mut memo = Memo::new(&version(1));
        memo.saw(&seen, Some(7));
        tokio::time::advance(passed).await;
        memo.forget_what_is_old(term);
        memo.seen == seen
    };
    assert!(goes_on(GOES_ON_FOR, Some(7)).await);
    assert!(!goes_on(GOES_ON_FOR + Duration::from_millis(1), Some(7)).await);
    assert!(!goes_on(Duration::ZERO, Some(8)).await && !goes_on(Duration::ZERO, None).await);
}

#[test]
fn an_alarm_is_told_until_an_answer_says_otherwise() {
    let mut observed = report::fixture::healthy();
    let mut memo = Memo::new(&observed.cluster);
    let heard = |alarm: Option<Alarm>| Overall::Known { downgrade: None, alarm };
    // What one round says of Available, Ready and Stalled, with the status that it leaves.
    let mut round = |memo: &mut Memo, term: u64, overall: Overall| {
        observed.world.overall = overall;
        let mut plan = quorate_statemachine::plan(&observed.world);
        memo.recall_alarm(Some(term), &observed, &mut plan);
        let status = report::status(&observed, &plan, Timestamp::UNIX_EPOCH);
        observed = report::fixture::after(observed.clone(), status.clone());
        let told = |kind: ConditionType| {
            let condition = kind.among(&status.conditions).unwrap();
            format!("{} {}", condition.status, condition.reason)
        };
        let told = [ConditionType::Available, ConditionType::Ready, ConditionType::Stalled].map(told);
        (told, observed.cluster.clone())
    };
    let raised = ["False NoSpace", "False NoSpace", "True NoSpace"].map(str::to_owned);
    let (well, _) = round(&mut memo, 1, Overall::Unknown);
    assert!(well[0].starts_with("True"), "nothing was ever heard of an alarm: {well:?}");
    assert_eq!(round(&mut memo, 1, heard(Some(Alarm::NoSpace))).0, raised);
    let (told, left) = round(&mut memo, 1, Overall::Unknown);
    assert_eq!(told, raised, "the leader did not answer");
    let mut another = Memo::new(&left);
    assert_eq!(round(&mut another, 1, Overall::Unknown).0, raised, "another operator, that has heard nothing yet");
    assert_eq!(round(&mut another, 1, heard(None)).0, well, "it was disarmed");
    assert_eq!(round(&mut memo, 2, Overall::Unknown).0, well, "the first one leads again");
    assert_eq!(round(&mut another, 2, heard(Some(Alarm::NoSpace))).0, raised);
    assert_eq!(round(&mut memo, 3, Overall::Unknown).0, raised, "raised again while the other one led");
    assert_eq!(round(&mut memo, 3, heard(None)).0, well);
    assert_eq!(round(&mut memo, 3, Overall::Unknown).0, well);
}

#[test]
fn no_alarm_is_remembered_of_a_cluster_that_sleeps() {
    let mut observed = report::fixture::healthy();
    let mut memo = Memo::new(&observed.cluster);
    memo.alarm = Some(Alarm::Corrupt);
    observed.world.membership = Membership::Unknown;
    let plan = quorate_statemachine::plan(&observed.world);
    memo.recall_alarm(None, &observed, &mut plan.clone());
    assert_eq!(memo.alarm, Some(Alarm::Corrupt), "it is only not heard of");
    memo.recall_alarm(None, &observed, &mut Plan { phase: Phase::Hibernated, ..plan });
    assert_eq!(memo.alarm, None);
}

#[tokio::test(start_paused = true)]
async fn haste_ends_when_nothing_comes_of_it_and_begins_anew_when_something_does() {
    let mut memo = Memo::new(&version(1));
    assert_eq!(memo.without_haste(LookAgain::Soon, false), LookAgain::Soon);
    tokio::time::advance(HASTE).await;
    assert_eq!(memo.without_haste(LookAgain::Soon, false), LookAgain::Later);
    assert_eq!(memo.without_haste(LookAgain::AtOnce, false), LookAgain::Later);
    assert_eq!(memo.without_haste(LookAgain::AtOnce, true), LookAgain::AtOnce, "something moved");
    assert_eq!(memo.without_haste(LookAgain::Soon, false), LookAgain::Soon);
    tokio::time::advance(HASTE / 2).await;
    assert_eq!(memo.without_haste(LookAgain::AtRest, false), LookAgain::AtRest);
    tokio::time::advance(HASTE / 2).await;
    assert_eq!(memo.without_haste(LookAgain::Soon, false), LookAgain::Soon, "it was at rest between");
}

#[test]
fn a_label_is_written_once_for_each_version_of_the_pod_that_the_watch_shows() {
    let mut memo = Memo::new(&version(1));
    let mut observed = report::fixture::healthy();
    let shown = observed.pods[&Serial(1)].clone();
    let label = Step::LabelPod { serial: Serial(1), pod: shown.uid.clone(), label: RoleLabel::Voter };
    let planned = |memo: &Memo, observed: &Observed| {
        let mut plan = quorate_statemachine::plan(&observed.world);
        plan.steps = vec![label.clone()];
        memo.leave_out_labels(observed, &mut plan);
        plan.steps.len()
    };
    assert_eq!(planned(&memo, &observed), 1);
    memo.labelled(&observed, std::slice::from_ref(&label));
    assert_eq!(planned(&memo, &observed), 0, "the watch has not moved");
    observed.pods.get_mut(&Serial(1)).unwrap().resource_version = "2".into();
    assert_eq!(planned(&memo, &observed), 1, "somebody took it off");
    observed.pods.clear();
    memo.labelled(&observed, &[]);
    assert!(memo.labelled.is_empty());
}

#[test]
fn a_memo_is_of_one_object() {
    let memo = Memo::new(&version(1));
    let mut other = (*version(1)).clone();
    other.metadata.uid = Some("other".into());
    assert!(memo.is_of(&version(2)) && !memo.is_of(&other));
}
