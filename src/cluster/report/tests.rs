//! Tests of what is reported: truths of conditions, stability at rest, events on transitions only.

use jiff::{SignedDuration, Timestamp};
use quorate_crds::{EtcdClusterStatus, MemberHealth, Reason};
use quorate_statemachine::{
    Alarm, Failed, Finding, Image, Membership, Memory, NodeName, Outcome, Overall, Phase, Plan, Release, Serial, Sight,
    Uid, Version, plan,
};

use super::fixture::{self, SERIALS, after, healthy, sighted};
use super::{events, sentences, status};
use crate::cluster::act::Renewed;
use crate::cluster::observe::Observed;
use crate::cluster::observe::trials::TrialFacts;
use crate::cluster::observe::trouble::Told;
use crate::cluster::pki::{Certificates, Fault};
use crate::events::News;

pub const EARLY: Timestamp = Timestamp::UNIX_EPOCH;

fn late() -> Timestamp {
    Timestamp::from_second(1_000_000).unwrap()
}

pub fn report(observed: &Observed, now: Timestamp) -> (Plan, EtcdClusterStatus) {
    let plan = plan(&observed.world);
    let status = status(observed, &plan, now);
    (plan, status)
}

pub fn truth(status: &EtcdClusterStatus, kind: &str) -> (String, String) {
    let condition = status.conditions.iter().find(|condition| condition.type_ == kind).unwrap();
    (condition.status.clone(), condition.reason.clone())
}

fn told(observed: &Observed) -> Vec<Reason> {
    let (plan, new) = report(observed, late());
    events::of_turns(observed, &plan, &new).into_iter().map(|news| news.reason).collect()
}

#[test]
fn a_healthy_cluster_is_ready_available_and_at_rest() {
    let (plan, status) = report(&healthy(), EARLY);
    assert_eq!(plan.phase, Phase::Running);
    for (kind, expected) in [
        ("Ready", "True"),
        ("Available", "True"),
        ("Reconciling", "False"),
        ("Stalled", "False"),
        ("CertificatesValid", "True"),
        ("BackupHealthy", "False"),
    ] {
        assert_eq!(truth(&status, kind).0, expected, "{kind}");
    }
    assert!(status.conditions.iter().all(|condition| condition.observed_generation == Some(4)));
    assert_eq!((status.replicas, status.ready_replicas), (3, 3));
    assert_eq!(status.leader.as_deref(), Some("db-0"));
    assert_eq!(status.version.as_deref(), Some("3.6.16"));
    assert_eq!(status.selector.as_deref(), Some("quorate.dev/cluster=db,app.kubernetes.io/name=etcd"));
    assert_eq!(status.members.len(), 3);
}

#[test]
fn the_same_world_twice_is_the_same_status() {
    let silent = [(Serial(1), Sight::Unknown)];
    for observed in [healthy(), sighted(&silent, true), sighted(&SERIALS.map(|s| (s, Sight::Unknown)), false)] {
        let (_, first) = report(&observed, EARLY);
        let observed = after(observed, first.clone());
        assert_eq!(report(&observed, late()).1, first);
        assert_eq!(told(&observed), []);
    }
}

#[test]
fn a_transition_is_dated_only_where_the_truth_turns() {
    let (_, first) = report(&healthy(), EARLY);
    let gone = after(sighted(&[(Serial(2), Sight::Waiting(None))], true), first);
    let (_, second) = report(&gone, late());
    let date = |kind: &str| second.conditions.iter().find(|c| c.type_ == kind).unwrap().last_transition_time.0;
    assert_eq!(truth(&second, "Ready").0, "False");
    assert_eq!(date("Ready"), late());
    assert_eq!(date("Available"), EARLY);
}

#[test]
fn becoming_ready_is_told_once() {
    let observed = healthy();
    assert_eq!(told(&observed), [Reason::ClusterReady]);
    let (_, status) = report(&observed, EARLY);
    assert_eq!(told(&after(observed, status)), []);
}

#[test]
fn silence_of_everybody_is_unknown_and_not_a_loss() {
    let (_, before) = report(&healthy(), EARLY);
    let silent = after(sighted(&SERIALS.map(|s| (s, Sight::Unknown)), false), before);
    let (_, status) = report(&silent, late());
    assert_eq!(truth(&status, "Available"), ("Unknown".into(), "EtcdUnknown".into()));
    assert!(status.members.iter().all(|member| member.health == Some(MemberHealth::Unknown)));
    assert!(status.members.iter().all(|member| member.version.as_deref() == Some("3.6.16")), "what was learned stays");
}

#[test]
fn a_majority_that_was_seen_down_is_not_available() {
    let mut observed = sighted(&[(Serial(1), Sight::Waiting(None)), (Serial(2), Sight::Waiting(None))], false);
    if let Some(Sight::Etcd(alive)) =
        observed.world.seats.get_mut(&Serial(0)).and_then(|seat| seat.pod.as_mut()).map(|pod| &mut pod.sight)
    {
        alive.has_leader = false;
    }
    let (_, before) = report(&healthy(), EARLY);
    let observed = after(observed, before);
    assert_eq!(observed.world.membership, Membership::Unknown);
    let (_, status) = report(&observed, late());
    assert_eq!(truth(&status, "Available"), ("False".into(), "QuorumLost".into()));
    assert!(told(&observed).contains(&Reason::QuorumLost));
}

/// As when nodes lose their power: nothing is heard at first, and later Kubernetes says that their pods are not ready.
#[test]
fn a_quorum_that_is_lost_by_way_of_silence_is_told_once() {
    let silent = || sighted(&SERIALS.map(|serial| (serial, Sight::Unknown)), false);
    let down = || sighted(&[(Serial(1), Sight::Waiting(None)), (Serial(2), Sight::Waiting(None))], false);
    let (told, _) = through(vec![silent(), down(), down(), silent(), healthy()], report(&healthy(), EARLY).1);
    let lost = |news: &Vec<News>| news.iter().filter(|news| news.warning && news.reason == Reason::QuorumLost).count();
    assert_eq!(told.iter().map(lost).collect::<Vec<_>>(), [0, 1, 0, 0, 0], "{told:?}");
}

#[test]
fn members_that_run_and_give_no_list_are_no_loss_of_quorum() {
    let (_, before) = report(&healthy(), EARLY);
    for (waiting, loss) in [(0, false), (1, false), (2, true)] {
        let sights: Vec<_> = SERIALS.into_iter().take(waiting).map(|serial| (serial, Sight::Waiting(None))).collect();
        let (_, status) = report(&after(sighted(&sights, false), before.clone()), late());
        let (truth, reason) = truth(&status, "Available");
        let expected = if loss { ("False", "QuorumLost") } else { ("Unknown", "EtcdUnknown") };
        assert_eq!((truth.as_str(), reason.as_str()), expected, "{waiting} wait");
    }
}

#[test]
fn a_ledger_that_cannot_be_read_is_left_as_it_is() {
    let mut broken = report(&healthy(), EARLY).1;
    broken.ledger = Some(quorate_crds::Ledger { seeded: true, ..quorate_crds::Ledger::default() });
    let mut observed = fixture::after(healthy(), broken.clone());
    observed.world.memory = crate::cluster::ledger::read("db", observed.cluster.status.as_ref());
    let (plan, status) = report(&observed, late());
    assert_eq!(plan.phase, Phase::Failed);
    assert_eq!(status.ledger, broken.ledger);
    assert_eq!(truth(&status, "Stalled"), ("True".into(), "LedgerUnreadable".into()));
}

#[test]
fn a_refusal_by_kubernetes_stalls_and_is_dated_once() {
    let before = report(&healthy(), EARLY).1;
    let refused = |before: &quorate_crds::EtcdClusterStatus, now: Timestamp| {
        let mut status = report(&after(healthy(), before.clone()), now).1;
        let old = &before.conditions;
        super::conditions::stall(&mut status.conditions, old, Reason::ObjectRefused, "exceeded quota", now);
        status
    };
    let first = refused(&before, late());
    let once = first.conditions.clone();
    assert_eq!(refused(&first, Timestamp::MAX), first, "the next round refused it again");
    let stalled = once.iter().find(|c| c.type_ == "Stalled").unwrap();
    assert_eq!((stalled.status.as_str(), stalled.message.as_str()), ("True", "exceeded quota"));
}

#[test]
fn going_to_sleep_is_no_loss() {
    let (_, before) = report(&healthy(), EARLY);
    let mut asleep = after(sighted(&SERIALS.map(|s| (s, Sight::Waiting(None))), false), before);
    asleep.world.wish.replicas = 0;
    let (_, status) = report(&asleep, late());
    assert_eq!(truth(&status, "Available"), ("False".into(), "Hibernated".into()));
    assert_eq!(told(&asleep), []);
}

#[test]
fn while_an_alarm_is_raised_the_cluster_is_not_available_though_all_members_are_well() {
    for (alarm, reason) in [(Alarm::NoSpace, "NoSpace"), (Alarm::Corrupt, "Corrupt")] {
        let mut observed = healthy();
        observed.world.overall = Overall::Known { downgrade: None, alarm: Some(alarm) };
        let (plan, status) = report(&observed, EARLY);
        assert_eq!((plan.phase, plan.steps), (Phase::Running, Vec::new()));
        for (condition, said) in [("Available", "False"), ("Ready", "False"), ("Stalled", "True")] {
            assert_eq!(truth(&status, condition), (said.into(), reason.into()));
        }
        observed.world.wish.life = quorate_statemachine::Life::Paused;
        let (_, status) = report(&observed, EARLY);
        for condition in ["Available", "Ready"] {
            assert_eq!(truth(&status, condition), ("False".into(), reason.into()));
        }
    }
}

#[test]
fn a_storage_class_that_does_not_exist_is_named_as_the_cause() {
    let mut observed = sighted(&[(Serial(2), Sight::Unknown)], true);
    let words = "0/3 nodes are available: pod has unbound immediate PersistentVolumeClaims.";
    let trouble = quorate_statemachine::Trouble::Unschedulable;
    if let Some(pod) = observed.pods.get_mut(&Serial(2)) {
        pod.trouble = Some(Told { trouble, words: words.into() });
    }
    let claim = crate::cluster::observe::facts::ClaimFacts {
        uid: quorate_statemachine::Uid::new("claim-2"),
        cluster_uid: Some("uid".into()),
        label: Some("db".into()),
        terminating: false,
        volume_name: None,
        volume_gone: false,
        class: Some("nope".into()),
        requested: None,
    };
    observed.claims.insert(Serial(2), claim);
    let told = |observed: &Observed| {
        let plan = plan(&observed.world);
        super::sentences::tell(observed, &plan, Some(Serial(2)), quorate_statemachine::Finding::Unschedulable)
    };
    assert_eq!(told(&observed).reason, Reason::VolumePending);
    observed.missing_classes.insert("nope".into());
    assert_eq!(told(&observed).reason, Reason::StorageClassMissing);
    assert!(told(&observed).sentence.starts_with("db-2: ") && told(&observed).sentence.ends_with(words));
    // One that had its volume, and lost it.
    let claim = observed.claims.get_mut(&Serial(2)).unwrap();
    (claim.volume_name, claim.volume_gone) = (Some("pv-2".into()), true);
    assert_eq!(told(&observed).reason, Reason::VolumePending);
    assert!(told(&observed).sentence.contains("delete the claim"), "{}", told(&observed).sentence);
}

#[test]
fn a_release_that_failed_is_named_by_the_very_report_that_remembers_it() {
    let observed = healthy();
    let mut plan = plan(&observed.world);
    let Memory::Ledger(mut ledger) = observed.world.memory.clone() else { panic!("{:?}", observed.world.memory) };
    let release = Release { version: Version::new(7, 3), image: Image::new("mirror.example.com/etcd:x") };
    ledger.failed = Some(Failed { wished: release.clone(), release, serial: Serial(2) });
    plan.ledger = Some(ledger);
    let told = super::sentences::tell(&observed, &plan, None, quorate_statemachine::Finding::ReleaseFailed);
    for words in ["db-2", "3.7.3", "mirror.example.com/etcd:x", "spec.version"] {
        assert!(told.sentence.contains(words), "{}", told.sentence);
    }
}

/// A cluster that is to go to this image, of which the trial for db-2 has come to this, in these words. Without a trial it
/// is to be made.
pub fn trying(image: &str, come: Option<(Outcome, &str)>) -> Observed {
    let mut observed = healthy();
    let release = Release { version: Version::new(7, 3), image: Image::new(image) };
    let trial = come.map(|(outcome, words)| TrialFacts {
        name: "db-2-trial".into(),
        uid: Uid::new("trial"),
        owner: Some("uid".into()),
        created: observed.world.now,
        member: "db-2".into(),
        release: release.clone(),
        template: observed.world.wish.template,
        node: NodeName::new("n1"),
        terminating: false,
        outcome,
        words: words.into(),
        wordless: false,
    });
    observed.trials = trial.into_iter().map(|trial| (Serial(2), trial)).collect();
    observed.world.trials = observed.trials.iter().map(|(serial, trial)| trial.in_words_of_plan(*serial)).collect();
    observed.world.wish.release = release;
    observed.world.overall = Overall::Known { downgrade: None, alarm: None };
    observed
}

/// Goes through these rounds, from each of which the status is left to the next; says what was told of in each, and the
/// status in the end.
pub fn through(rounds: Vec<Observed>, mut status: EtcdClusterStatus) -> (Vec<Vec<News>>, EtcdClusterStatus) {
    let mut told = Vec::new();
    for round in rounds {
        let observed = after(round, status);
        let (plan, new) = report(&observed, late());
        told.push(events::of_turns(&observed, &plan, &new));
        status = new;
    }
    (told, status)
}

#[test]
fn a_node_that_can_not_try_an_image_is_warned_of_once_and_not_at_each_try() {
    let said = "failed to create containerd task: no space left on device";
    let (open, undecided) = ((Outcome::Open, ""), (Outcome::Undecided, said));
    let image = "mirror.example.com/etcd:x";
    let rounds = [None, Some(open), Some(undecided), Some(undecided), None, Some(open), Some(undecided)];
    let (told, status) = through(rounds.map(|come| trying(image, come)).into(), report(&trying(image, None), EARLY).1);
    assert_eq!(told.iter().map(Vec::len).collect::<Vec<_>>(), [0, 0, 1, 0, 0, 0, 0], "{told:?}");
    let News { warning, reason, note, member } = &told[2][0];
    assert_eq!((*warning, *reason, member.as_deref()), (true, Reason::TrialUndecided, Some("db-2")));
    for words in ["db-2", "n1", image, said] {
        assert!(note.contains(words), "{note}");
    }
    assert_eq!(truth(&status, "Ready"), ("False".into(), "TrialUndecided".into()));
    assert_eq!(truth(&status, "Stalled").0, "False", "it may pass");
    assert_eq!(status.members[2].reason.as_deref(), Some("TrialUndecided"));
    // Once the node could try it, that is over.
    let (told, status) = through(vec![trying(image, Some((Outcome::Passed, "")))], status);
    assert_eq!((told, status.members[2].reason.as_deref()), (vec![vec![]], Some("Upgrading")));
}

#[test]
fn a_node_that_can_not_try_another_image_either_is_warned_of_anew() {
    let undecided = Some((Outcome::Undecided, "Evicted"));
    let of = |image: &str, generation: i64, come: Option<(Outcome, &str)>| {
        let mut observed = trying(image, come);
        std::sync::Arc::make_mut(&mut observed.cluster).metadata.generation = Some(generation);
        observed
    };
    let rounds = vec![of("etcd:x", 4, undecided), of("etcd:y", 5, None), of("etcd:y", 5, undecided)];
    let (told, _) = through(rounds, report(&trying("etcd:x", None), EARLY).1);
    let notes: Vec<_> = told.concat().into_iter().map(|news| news.note).collect();
    assert!(matches!(notes.as_slice(), [x, y] if x.contains("etcd:x") && y.contains("etcd:y")), "{notes:?}");
}

#[test]
fn what_is_broken_is_told_before_an_image_that_could_not_be_tried() {
    let weight = super::sentences::weight;
    assert!(weight(Finding::TrialUndecided) < weight(Finding::NodeUnreachable));
    assert!(weight(Finding::TrialUndecided) > weight(Finding::ReleaseOutdated));
}

#[test]
fn the_status_shows_what_runs_and_what_is_on_its_way() {
    let mut observed = healthy();
    observed.world.wish.release = Release { version: Version::new(7, 3), image: Image::new("etcd:v3.7.3") };
    observed.world.overall = Overall::Known { downgrade: None, alarm: None };
    let (plan, status) = report(&observed, EARLY);
    assert_eq!(plan.phase, Phase::Upgrading);
    assert_eq!(status.version.as_deref(), Some("3.6.16"));
    assert_eq!(status.target_version.as_deref(), Some("3.7.3"));
    assert_eq!(truth(&status, "Reconciling"), ("True".into(), "Upgrading".into()));
    assert_eq!(truth(&status, "Available").0, "True");
}

#[test]
fn the_version_of_a_mix_is_the_lowest_that_runs() {
    let shown = |versions: [&str; 3]| {
        let mut observed = healthy();
        for (seen, version) in observed.said.seen.values_mut().zip(versions) {
            seen.version = Some(version.to_owned());
        }
        report(&observed, EARLY).1.version
    };
    assert_eq!(shown(["3.7.3", "3.6.16", "3.7.3"]).as_deref(), Some("3.6.16"));
    assert_eq!(shown(["3.6.16", "3.7.3", "3.7.3"]).as_deref(), Some("3.6.16"));
    assert_eq!(shown(["3.6.16", "3.6.9", "3.6.16"]).as_deref(), Some("3.6.9"), "by numbers, not by letters");
}

#[test]
fn a_change_of_the_spec_is_told_once_with_its_fields() {
    let (_, mut before) = report(&healthy(), EARLY);
    before.observed_generation = Some(3);
    let mut observed = after(healthy(), before);
    let render = crate::cluster::render::resources_hash;
    for pod in observed.pods.values_mut() {
        let (begin, volume) = (crate::cluster::render::Begin::Resume, pod.volume.clone());
        let held =
            crate::cluster::observe::pods::TicketFacts { begin, volume, mark: None, version: None, since: pod.created };
        pod.ticket = Some(held);
        pod.resources = quorate_statemachine::TemplateHash(1);
        assert_ne!(pod.resources, render(&observed.cluster.spec));
        pod.release = pod.release.take().map(|told| Release { version: Version::new(5, 35), ..told });
    }
    let news = |observed: &Observed| {
        let (plan, new) = report(observed, late());
        let all = events::of_turns(observed, &plan, &new).into_iter();
        (all.filter(|news| news.reason == Reason::SpecChanged).map(|news| news.note).collect::<Vec<_>>(), new)
    };
    let (told, status) = news(&observed);
    assert!(matches!(told.as_slice(), [one] if one.ends_with("spec.resources, spec.version.")), "{told:?}");
    assert_eq!(news(&after(observed, status)).0, [""; 0]);
}

/// A healthy cluster whose certificates are like this now; before, all of them were valid.
fn certified(certificates: Certificates) -> Observed {
    let mut observed = after(healthy(), report(&healthy(), EARLY).1);
    observed.tls.certificates = certificates;
    observed
}

/// What is told of certificates: the condition with its message, and the events.
fn told_of_certificates(observed: &Observed) -> ((String, String), String, Vec<News>) {
    let (plan, new) = report(observed, late());
    let message = new.conditions.iter().find(|c| c.type_ == "CertificatesValid").unwrap().message.clone();
    (truth(&new, "CertificatesValid"), message, events::of_turns(observed, &plan, &new))
}

#[test]
fn a_certificate_that_should_have_been_renewed_is_warned_of_once_with_its_end() {
    let until = late() + SignedDuration::from_hours(30);
    let observed = certified(Certificates::Valid { secret: "db-1".into(), until, expiring: true });
    let (condition, message, news) = told_of_certificates(&observed);
    assert_eq!(condition, ("True".into(), "CertificatesExpiring".into()));
    for words in ["db-1", "1970-01-13T19:46:40Z", "should have been renewed"] {
        assert!(message.contains(words), "{message}");
    }
    let reason = Reason::CertificatesExpiring;
    assert_eq!(news, [News { warning: true, reason, note: message, member: None }]);
    let mut again = after(observed.clone(), report(&observed, late()).1);
    assert_eq!(told(&again), []);
    // It was renewed after all.
    again.tls.certificates = healthy().tls.certificates;
    assert_eq!(told_of_certificates(&again).0, ("True".into(), "CertificatesValid".into()));
    assert_eq!(told(&again), []);
}

/// A date and no count of days, which would be written anew each day.
#[test]
fn until_when_all_certificates_are_valid_is_told() {
    let until = late() + SignedDuration::from_hours(30);
    let observed = certified(Certificates::Valid { secret: "db-1".into(), until, expiring: false });
    let (condition, message, news) = told_of_certificates(&observed);
    assert_eq!(condition, ("True".into(), "CertificatesValid".into()));
    assert!(message.contains("the first to run out is in Secret db-1, on 1970-01-13T19:46:40Z"), "{message}");
    assert_eq!(news, []);
}

#[test]
fn certificates_that_can_not_be_used_any_more_are_warned_of_once_with_each_fault() {
    let faults = [("my-peer", Fault::KeyMismatch), ("my-server", Fault::ChainExpired)];
    let observed = certified(Certificates::Faulty(faults.map(|(secret, fault)| (secret.to_owned(), fault)).into()));
    let (condition, message, news) = told_of_certificates(&observed);
    assert_eq!(condition, ("False".into(), "CertificatesFaulty".into()));
    for words in [
        "Secret my-peer: the private key does not belong to the certificate",
        "Secret my-server: a certificate between it and its authority can't be used now",
    ] {
        assert!(message.contains(words), "{message}");
    }
    let reason = Reason::CertificatesFaulty;
    assert_eq!(news, [News { warning: true, reason, note: message, member: None }]);
    // What runs goes on, and is not begun anew.
    let (plan, status) = report(&observed, late());
    assert_eq!((plan.phase, truth(&status, "Available").0.as_str()), (Phase::Running, "True"));
    assert_eq!(truth(&status, "Stalled").0, "False");
    assert_eq!(told(&after(observed, status)), []);
}

#[test]
fn an_authority_that_is_lost_is_warned_of_and_certificates_that_are_being_issued_are_not() {
    let lost = Certificates::Lost { secret: "db-peer-ca".into(), fault: Fault::SecretMissing };
    let (condition, note, news) = told_of_certificates(&certified(lost));
    assert_eq!(condition, ("False".into(), "AuthorityLost".into()));
    assert_eq!(news, [News { warning: true, reason: Reason::AuthorityLost, note, member: None }]);
    let (condition, _, news) = told_of_certificates(&certified(Certificates::Pending));
    assert_eq!(condition, ("False".into(), "CertificatesPending".into()));
    assert_eq!(news, []);
}

#[test]
fn a_renewal_is_told_in_one_sentence_with_the_days_until_the_first_runs_out() {
    let renewed = |secret: &str, hours: i64| {
        let until = EARLY + SignedDuration::from_hours(hours);
        Renewed { secret: secret.into(), until }
    };
    assert_eq!(events::of_renewals(&[], EARLY), None);
    let told = |all: &[Renewed]| events::of_renewals(all, EARLY).unwrap();
    let note =
        "The certificates in db-0, db-client were renewed. They are valid for 90 days, until 1970-04-01T01:00:00Z.";
    let News { warning, reason, note: found, member } =
        told(&[renewed("db-0", 24 * 91), renewed("db-client", 24 * 90 + 1)]);
    assert_eq!((warning, reason, found.as_str(), member), (false, Reason::CertificatesRenewed, note, None));
    // Days that are not whole are not counted.
    assert!(told(&[renewed("db-0", 24 * 3 - 1)]).note.contains("valid for 2 days"));
    assert!(told(&[renewed("db-0", 1)]).note.ends_with("They are valid until 1970-01-01T01:00:00Z."));
}

#[test]
fn while_etcd_moves_a_version_nothing_is_said_of_members_that_may_be_down_but_that_it_takes_all_of_them() {
    let observed = healthy();
    let plan = plan(&observed.world);
    for finding in [Finding::ClusterVersionLags, Finding::DowngradeUnderWay] {
        let told = sentences::tell(&observed, &plan, None, finding).sentence;
        assert!(told.contains("up.") && !told.contains("members run"), "{told}");
    }
}
