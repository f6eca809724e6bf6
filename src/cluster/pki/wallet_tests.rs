//! Tests of what is remembered of certificates: when Secrets are read, what is due, and what is told.

use jiff::{SignedDuration, Timestamp};
use quorate_crds::EtcdClusterSpec;

use super::super::fixture::{DOMAIN, NOW, cluster};
use super::super::{MemberKeys, authority_secret, client_secret, member_secret};
use super::*;

const HOUR: SignedDuration = SignedDuration::from_hours(1);
/// No member has a pod.
const NOBODY: BTreeSet<Serial> = BTreeSet::new();

fn terms(spec: &EtcdClusterSpec) -> Terms<'_> {
    Terms { cluster: cluster(spec), domain: DOMAIN }
}

fn spec() -> EtcdClusterSpec {
    let mut spec = EtcdClusterSpec::default();
    spec.tls.lifetime_minutes = 24 * 60;
    spec
}

/// Everything that a cluster of these members has, issued now; each Secret in version 1.
fn secrets(terms: &Terms<'_>, members: &[u32]) -> Vec<Secret> {
    let made = |realm: Realm| Authority::make(&realm.secret("db"), NOW).unwrap();
    let (peer, client) = (made(Realm::Peer), made(Realm::Client));
    let pair = client.issue(&terms.client(), None, NOW).unwrap();
    let mut secrets = vec![
        authority_secret(&terms.cluster, Realm::Peer, &peer),
        authority_secret(&terms.cluster, Realm::Client, &client),
        client_secret(&terms.cluster, &pair, client.trusted()),
    ];
    secrets.extend(members.iter().map(|serial| {
        let serial = Serial(*serial);
        let keys = MemberKeys {
            peer: peer.issue(&terms.peer(serial), None, NOW).unwrap(),
            server: client.issue(&terms.server(serial), None, NOW).unwrap(),
        };
        member_secret(&terms.cluster, serial, &keys, peer.trusted(), client.trusted())
    }));
    secrets.into_iter().map(|secret| versioned(secret, 1)).collect()
}

fn versioned(mut secret: Secret, version: u32) -> Secret {
    secret.metadata.resource_version = Some(version.to_string());
    secret
}

fn shown(secrets: &[Secret]) -> BTreeMap<String, SecretFacts> {
    secrets.iter().map(|secret| (secret.name_any(), SecretFacts::of(secret).unwrap())).collect()
}

fn serials<const N: usize>(serials: [u32; N]) -> BTreeSet<Serial> {
    serials.map(Serial).into()
}

#[test]
fn secrets_are_read_once_and_then_only_when_somebody_changed_one() {
    let spec = spec();
    let (wallet, terms) = (Wallet::default(), terms(&spec));
    let secrets = secrets(&terms, &[0]);
    let mut watched = shown(&secrets);
    assert!(wallet.must_read(&watched, &NOBODY, &terms, NOW), "nothing is known yet");
    assert!(wallet.access().is_none());
    wallet.take(secrets.clone(), &NOBODY, &terms, NOW);
    assert!(wallet.access().is_some());
    wallet.rest();
    assert!(wallet.contents().is_none() && wallet.keyring().is_none(), "no key of others is kept at rest");
    assert!(!wallet.must_read(&watched, &NOBODY, &terms, NOW));
    watched.get_mut("db-0").unwrap().version = "9".into();
    assert!(wallet.must_read(&watched, &NOBODY, &terms, NOW), "somebody changed it");
    watched.remove("db-0");
    assert!(wallet.must_read(&watched, &NOBODY, &terms, NOW), "somebody deleted it");
}

#[test]
fn our_own_writes_that_the_watch_does_not_show_yet_are_no_change() {
    let spec = spec();
    let (wallet, terms) = (Wallet::default(), terms(&spec));
    let secrets = secrets(&terms, &[0]);
    wallet.take(secrets[..3].to_vec(), &NOBODY, &terms, NOW);
    wallet.rest();
    let before = shown(&secrets[..3]);
    assert!(!wallet.must_read(&before, &NOBODY, &terms, NOW));
    let span = Span { until: NOW + terms.lifetime(), from: NOW };
    wallet.wrote(secrets[3].clone(), span);
    assert!(!wallet.must_read(&before, &NOBODY, &terms, NOW), "its creation is on its way");
    wallet.wrote(versioned(secrets[3].clone(), 2), span);
    assert!(!wallet.must_read(&shown(&secrets), &NOBODY, &terms, NOW), "so is what replaced it");
    let mut after = shown(&secrets);
    after.get_mut("db-0").unwrap().version = "2".into();
    assert!(!wallet.must_read(&after, &NOBODY, &terms, NOW));
    assert!(wallet.must_read(&shown(&secrets), &NOBODY, &terms, NOW), "back to an older version: that is not ours");
}

#[test]
fn a_new_cluster_needs_everything_and_a_whole_one_nothing() {
    let spec = spec();
    let (wallet, terms) = (Wallet::default(), terms(&spec));
    wallet.take(Vec::new(), &NOBODY, &terms, NOW);
    let all = wallet.duties(&serials([0, 1]), &terms, NOW);
    assert_eq!(all, Duties { authorities: vec![Realm::Peer, Realm::Client], client: true, members: serials([0, 1]) });
    assert_eq!(wallet.report(&serials([]), &terms, NOW), Certificates::Pending);
    wallet.take(secrets(&terms, &[0, 1]), &NOBODY, &terms, NOW);
    assert!(wallet.duties(&serials([0, 1]), &terms, NOW).is_empty());
    assert_eq!(wallet.duties(&serials([0, 2]), &terms, NOW).members, serials([2]));
    let until = NOW + terms.lifetime();
    let valid = Certificates::Valid { secret: "db-client".into(), until, expiring: false };
    assert_eq!(wallet.report(&serials([]), &terms, NOW), valid);
    assert_eq!(wallet.report(&serials([2]), &terms, NOW), Certificates::Pending);
}

#[test]
fn what_has_lived_half_its_time_is_due_and_told_of_later() {
    let spec = spec();
    let (wallet, terms) = (Wallet::default(), terms(&spec));
    let secrets = secrets(&terms, &[0]);
    wallet.take(secrets.clone(), &NOBODY, &terms, NOW);
    wallet.rest();
    let (before, after) = (NOW + HOUR * 11, NOW + HOUR * 13);
    assert!(wallet.duties(&serials([0]), &terms, before).is_empty());
    assert!(!wallet.must_read(&shown(&secrets), &NOBODY, &terms, before));
    let due = wallet.duties(&serials([0]), &terms, after);
    assert_eq!(due, Duties { authorities: Vec::new(), client: true, members: serials([0]) });
    assert!(wallet.must_read(&shown(&secrets), &NOBODY, &terms, after));
    let expiring = |now: Timestamp| match wallet.report(&serials([0]), &terms, now) {
        Certificates::Valid { expiring, .. } => expiring,
        other => panic!("{other:?}"),
    };
    assert!(!expiring(after) && expiring(NOW + HOUR * 19));
    wallet.take(secrets, &NOBODY, &terms, NOW + HOUR * 30);
    assert!(matches!(wallet.report(&serials([0]), &terms, NOW + HOUR * 30), Certificates::Faulty(_)), "it has run out");
}

#[test]
fn a_shorter_lifetime_is_put_into_force_at_once() {
    let mut spec = spec();
    let wallet = Wallet::default();
    wallet.take(secrets(&terms(&spec), &[0]), &NOBODY, &terms(&spec), NOW);
    spec.tls.lifetime_minutes = 60;
    assert_eq!(wallet.duties(&serials([0]), &terms(&spec), NOW).members, serials([0]));
}

#[test]
fn another_name_is_put_into_force_at_once() {
    let mut spec = spec();
    let wallet = Wallet::default();
    let first = secrets(&terms(&spec), &[0]);
    wallet.take(first.clone(), &serials([0]), &terms(&spec), NOW);
    assert!(!wallet.must_read(&shown(&first), &serials([0]), &terms(&spec), NOW));
    for name in ["etcd.example.com", "*.etcd.example.com", "2001:db8::7"] {
        spec.tls.extra_names.push(name.into());
        assert!(wallet.must_read(&shown(&first), &serials([0]), &terms(&spec), NOW), "{name}");
        wallet.take(first.clone(), &serials([0]), &terms(&spec), NOW);
        assert_eq!(wallet.duties(&serials([0]), &terms(&spec), NOW).members, serials([0]), "{name}");
    }
    // And once they are in, that is that.
    let second: Vec<_> = secrets(&terms(&spec), &[0]).into_iter().map(|secret| versioned(secret, 2)).collect();
    wallet.take(second.clone(), &serials([0]), &terms(&spec), NOW);
    assert!(wallet.duties(&serials([0]), &terms(&spec), NOW).is_empty());
}

#[test]
fn near_the_end_of_an_authority_nothing_is_issued_over_and_over() {
    let spec = spec();
    let (wallet, terms) = (Wallet::default(), terms(&spec));
    let made = |realm: Realm| Authority::make(&realm.secret("db"), NOW).unwrap();
    let (peer, client) = (made(Realm::Peer), made(Realm::Client));
    let late = peer.until() - HOUR;
    let pair = client.issue(&terms.client(), None, late).unwrap();
    let secrets = vec![
        authority_secret(&terms.cluster, Realm::Peer, &peer),
        authority_secret(&terms.cluster, Realm::Client, &client),
        client_secret(&terms.cluster, &pair, client.trusted()),
    ];
    wallet.take(secrets.into_iter().map(|secret| versioned(secret, 1)).collect(), &NOBODY, &terms, late);
    assert!(wallet.duties(&serials([]), &terms, late).is_empty(), "it could not last longer");
}

/// What only the client authority has signed may last as long as that.
#[test]
fn an_authority_that_ends_first_shortens_nothing_that_it_has_not_signed() {
    let spec = spec();
    let (wallet, terms) = (Wallet::default(), terms(&spec));
    let peer = Authority::make(&Realm::Peer.secret("db"), NOW).unwrap();
    let late = peer.until() - HOUR;
    let client = Authority::make(&Realm::Client.secret("db"), late).unwrap();
    let pair = client.issue(&terms.client(), None, late).unwrap();
    let serial = Serial(0);
    let keys = MemberKeys {
        peer: peer.issue(&terms.peer(serial), None, late).unwrap(),
        server: client.issue(&terms.server(serial), None, late).unwrap(),
    };
    let secrets = [
        authority_secret(&terms.cluster, Realm::Peer, &peer),
        authority_secret(&terms.cluster, Realm::Client, &client),
        client_secret(&terms.cluster, &pair, client.trusted()),
        member_secret(&terms.cluster, serial, &keys, peer.trusted(), client.trusted()),
    ];
    let secrets = secrets.map(|secret| versioned(secret, 1));
    wallet.take(secrets.to_vec(), &serials([0]), &terms, late);
    assert!(wallet.duties(&serials([0]), &terms, late).is_empty(), "nothing of it could last longer");
    wallet.rest();
    assert!(!wallet.must_read(&shown(&secrets), &serials([0]), &terms, late));
}

#[test]
fn a_secret_that_the_watch_showed_when_it_was_read_is_missed_at_once() {
    let spec = spec();
    let (wallet, terms) = (Wallet::default(), terms(&spec));
    let secrets = secrets(&terms, &[0, 1]);
    let mut watched = shown(&secrets);
    assert!(wallet.must_read(&watched, &NOBODY, &terms, NOW));
    wallet.take(secrets.clone(), &NOBODY, &terms, NOW);
    wallet.rest();
    watched.remove("db-1");
    assert!(wallet.must_read(&watched, &NOBODY, &terms, NOW), "it was deleted before the next round");
}

#[tokio::test(start_paused = true)]
async fn a_secret_that_no_round_sees_in_the_watch_is_missed_by_and_by() {
    let spec = spec();
    let (wallet, terms) = (Wallet::default(), terms(&spec));
    let secrets = secrets(&terms, &[0, 1]);
    let mut watched = shown(&secrets);
    watched.remove("db-1");
    assert!(wallet.must_read(&watched, &NOBODY, &terms, NOW));
    wallet.take(secrets.clone(), &NOBODY, &terms, NOW);
    wallet.rest();
    tokio::time::advance(SHOWN_BY).await;
    assert!(!wallet.must_read(&watched, &NOBODY, &terms, NOW), "it may be on its way");
    tokio::time::advance(Duration::from_millis(1)).await;
    assert!(wallet.must_read(&watched, &NOBODY, &terms, NOW));
}

#[test]
fn a_longer_lifetime_does_not_say_of_what_is_renewed_that_it_should_have_been() {
    let (mut spec, members) = (spec(), serials([0]));
    let issued = secrets(&terms(&spec), &[0]);
    spec.tls.lifetime_minutes = 90 * 24 * 60;
    let (wallet, terms) = (Wallet::default(), terms(&spec));
    wallet.take(issued, &members, &terms, NOW);
    let expiring = |now: Timestamp| match wallet.report(&members, &terms, now) {
        Certificates::Valid { expiring, .. } => expiring,
        other => panic!("{other:?}"),
    };
    assert!(!wallet.duties(&members, &terms, NOW).is_empty(), "it is renewed");
    assert!(!expiring(NOW));
    assert!(expiring(NOW + HOUR * 19), "and is told when nobody has done it");
}

#[test]
fn the_operator_is_introduced_anew_by_an_authority_that_was_made_anew() {
    let spec = spec();
    let (wallet, terms) = (Wallet::default(), terms(&spec));
    let introduced_by = || wallet.state().operator.as_ref().map(|shown| shown.authority.clone());
    let authority = |secrets: &[Secret]| Some(read_authority(&secrets[1]).unwrap().trusted().to_owned());
    let (first, second) = (secrets(&terms, &[0]), secrets(&terms, &[0]));
    wallet.take(first.clone(), &NOBODY, &terms, NOW);
    assert_eq!(introduced_by(), authority(&first));
    wallet.take(second.clone(), &NOBODY, &terms, NOW);
    assert_eq!(introduced_by(), authority(&second));
    assert_ne!(authority(&first), authority(&second));
}

#[test]
fn a_lost_authority_is_told_and_nothing_is_put_in_its_place() {
    let spec = spec();
    let (wallet, terms) = (Wallet::default(), terms(&spec));
    let mut secrets = secrets(&terms, &[0]);
    let peer = secrets.remove(0);
    wallet.take(secrets.clone(), &NOBODY, &terms, NOW);
    let lost = Some(("db-peer-ca".to_owned(), Fault::SecretMissing));
    assert_eq!(wallet.lost(), lost);
    assert!(wallet.duties(&serials([0]), &terms, NOW).is_empty(), "what is there stays");
    assert_eq!(wallet.duties(&serials([0, 1]), &terms, NOW).members, serials([1]));
    assert!(matches!(wallet.report(&serials([0]), &terms, NOW), Certificates::Lost { .. }));
    secrets.insert(0, peer);
    wallet.take(secrets.clone(), &NOBODY, &terms, NOW);
    assert_eq!(wallet.lost(), None);
    // Before anything was signed an authority is not lost: it was not made yet.
    wallet.take(secrets[1..2].to_vec(), &NOBODY, &terms, NOW);
    assert_eq!(wallet.lost(), None);
    assert_eq!(wallet.duties(&serials([]), &terms, NOW).authorities, [Realm::Peer]);
}

#[test]
fn under_members_that_run_no_authority_is_made_though_no_secret_is_left() {
    let spec = spec();
    let (wallet, terms, members) = (Wallet::default(), terms(&spec), serials([0, 1]));
    wallet.take(Vec::new(), &members, &terms, NOW);
    assert_eq!(wallet.lost(), Some(("db-peer-ca".to_owned(), Fault::SecretMissing)));
    assert_eq!(wallet.duties(&members, &terms, NOW), Duties { members: members.clone(), ..Duties::default() });
    assert!(matches!(wallet.report(&members, &terms, NOW), Certificates::Lost { .. }));
    wallet.rest();
    let none = BTreeMap::new();
    assert!(!wallet.must_read(&none, &members, &terms, NOW), "nothing has changed");
    assert!(wallet.must_read(&none, &NOBODY, &terms, NOW), "the last pod is gone");
    wallet.take(Vec::new(), &NOBODY, &terms, NOW);
    assert_eq!(wallet.duties(&members, &terms, NOW).authorities, [Realm::Peer, Realm::Client]);
    assert!(wallet.must_read(&none, &members, &terms, NOW), "there are pods after all, so there were authorities");
}

#[test]
fn an_authority_that_was_exchanged_for_one_that_nobody_trusts_is_told_and_issues_nothing() {
    let spec = spec();
    let terms = terms(&spec);
    let (own, foreign) = (secrets(&terms, &[0, 1]), secrets(&terms, &[]));
    for (at, name) in ["db-peer-ca", "db-client-ca"].into_iter().enumerate() {
        let wallet = Wallet::default();
        wallet.take(own.clone(), &serials([0, 1]), &terms, NOW);
        let mut exchanged = own.clone();
        exchanged[at] = versioned(foreign[at].clone(), 2);
        wallet.take(exchanged, &serials([0, 1]), &terms, NOW);
        assert_eq!(wallet.lost(), Some((name.to_owned(), Fault::Strange)));
        assert!(wallet.keyring().is_none());
        assert!(wallet.duties(&serials([0, 1]), &terms, NOW + HOUR * 13).is_empty(), "though half the time is over");
        assert!(matches!(wallet.report(&serials([0, 1]), &terms, NOW), Certificates::Lost { .. }));
        wallet.take(own.clone(), &serials([0, 1]), &terms, NOW);
        assert_eq!(wallet.lost(), None);
    }
}

#[test]
fn before_members_run_the_secret_for_applications_does_not_speak_against_an_authority_that_was_made_anew() {
    let spec = spec();
    let (wallet, terms) = (Wallet::default(), terms(&spec));
    let (old, new) = (secrets(&terms, &[]), secrets(&terms, &[]));
    let left = vec![old[0].clone(), new[1].clone(), old[2].clone()];
    wallet.take(left.clone(), &NOBODY, &terms, NOW);
    assert_eq!(wallet.lost(), None);
    assert!(wallet.duties(&NOBODY, &terms, NOW).client, "it is issued anew");
    wallet.take(left, &serials([0]), &terms, NOW);
    assert_eq!(wallet.lost(), Some(("db-client-ca".to_owned(), Fault::Strange)));
}

#[test]
fn what_runs_out_soon_is_told_though_something_else_is_still_being_issued() {
    let spec = spec();
    let (wallet, terms) = (Wallet::default(), terms(&spec));
    wallet.take(secrets(&terms, &[0]), &NOBODY, &terms, NOW);
    let report = |now: Timestamp| wallet.report(&serials([0, 1]), &terms, now);
    assert_eq!(report(NOW + HOUR * 13), Certificates::Pending);
    assert!(matches!(report(NOW + HOUR * 19), Certificates::Valid { expiring: true, .. }));
}
