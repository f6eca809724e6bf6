//! What other programs say, as the status of an EtcdBackup tells it: no more than fits, the last cause that counts, and no news
//! where only numbers differ.

use quorate_crds::{EtcdBackup, EtcdBackupStatus, EtcdCluster, TlsMode};

use super::decide::{Seen, decide, hindered, outermost};
use super::fixture::{CREATED, backup, cluster, spec};
use super::tests::told;

fn seen<'a>(backup: &'a EtcdBackup, cluster: Option<&'a EtcdCluster>) -> Seen<'a> {
    Seen { backup, cluster, missing: None, job: None, pods: &[], progress: None, now: CREATED }
}

/// Takes over the status that a refusal in these words leads to.
fn refuse(backup: &mut EtcdBackup, answer: &str) -> EtcdBackupStatus {
    let status = hindered(seen(backup, None), answer).status;
    backup.status = Some(status.clone());
    status
}

#[test]
fn a_refusal_in_other_numbers_is_no_news_and_one_for_another_cause_is() {
    let mut backup = backup(spec());
    let first = refuse(&mut backup, "denied at 14:25:36Z, request 7c1e-9: 3 of 3 pods are used");
    assert_eq!(refuse(&mut backup, "denied at 14:25:38Z, request b02f-1: 4 of 3 pods are used"), first);
    let other = refuse(&mut backup, "exceeded quota at 14:25:40Z");
    assert_eq!(told(&other).2, "Its Job can't be created. Exceeded quota at 14:25:40Z.");
    // The generation is that of the spec, whatever is shown again.
    backup.metadata.generation = Some(2);
    assert_eq!(refuse(&mut backup, "exceeded quota at 14:25:42Z").observed_generation, Some(2));
}

#[test]
fn in_our_own_words_every_number_counts() {
    let mut backup = backup(spec());
    for name in ["db-1", "db-2"] {
        backup.spec.cluster = name.into();
        let status = decide(seen(&backup, None)).status;
        assert!(told(&status).2.contains(name), "{}", told(&status).2);
        backup.status = Some(status);
    }
}

#[test]
fn another_programs_words_are_told_in_bounds() {
    let backup = backup(spec());
    for flood in ["x".repeat(100_000), "\u{e4}".repeat(100_000)] {
        let status = hindered(seen(&backup, None), &flood).status;
        let (_, reason, message) = told(&status);
        assert!(reason == "ObjectRefused" && message.len() < 3000 && message.ends_with("..."), "{message}");
    }
    let mut cluster = cluster(TlsMode::Issued, "False");
    cluster.status.as_mut().unwrap().conditions[0].message = "x".repeat(32_768);
    let status = decide(seen(&backup, Some(&cluster))).status;
    assert!(told(&status).1 == "NoHealthyMember" && told(&status).2.len() < 3000, "{}", told(&status).2);
}

#[test]
fn what_differs_with_each_try_is_not_told() {
    let reset = "Internal error occurred: failed calling webhook \"a.b\": failed to call webhook: \
        Post \"https://b.c:443/\": read tcp 10.0.0.1:40122->10.0.0.2:443: read: connection reset by peer";
    let wanted = "Internal error occurred: failed calling webhook \"a.b\": failed to call webhook";
    assert_eq!(outermost(reset), wanted);
    let short = "etcdserver: mvcc: database space exceeded";
    assert_eq!(outermost(short), short);
}
