//! Encrypted backups of real etcd: what age and etcd's own tools make of them, an archive that goes on with public keys alone,
//! and a change of keys.

use std::fs;

use crate::agent::{command, run};
use crate::archive_real::{Archive, Moment, chains, recorded, write};
use crate::pair::Pair;
use crate::real::{Binaries, Etcd, each_version};
use crate::recorded::address;
use crate::snapshot_real::write_some;

async fn by_hand(binaries: &Binaries) {
    let etcd = Etcd::start(binaries);
    let last = write_some(&mut etcd.connect().await).await;
    let (store, pair) = (tempfile::tempdir().unwrap(), Pair::of_keygen());
    let place = address(store.path());
    let arguments = ["snapshot", "--endpoint", &etcd.url(), "--store", &place, "--lineage", "blue", "-o", "json"];
    let taken = run(&[&arguments[..], &["--recipients-file", pair.recipients()]].concat()).json();
    assert_eq!(taken["encryptedTo"], serde_json::json!([pair.fingerprint()]), "{taken}");
    let manifest = store.path().join(taken["manifest"].as_str().unwrap());
    let json: serde_json::Value = serde_json::from_slice(&fs::read(&manifest).unwrap()).unwrap();
    let object = manifest.parent().unwrap().join("d").join(json["data"]["name"].as_str().unwrap());
    // As docs/backup-format.md says: age -d | zstd -d, and then etcdutl takes it with its hash.
    let folder = tempfile::tempdir().unwrap();
    let database = folder.path().join("snapshot.db");
    let compressed = pair.decrypt_by_hand(&object);
    fs::write(&database, zstd::decode_all(&compressed[..]).unwrap()).unwrap();
    assert_eq!(binaries.status(&database)["revision"].as_i64(), Some(last));
    let restored = folder.path().join("restored");
    let arguments = ["snapshot", "restore", database.to_str().unwrap(), "--data-dir", restored.to_str().unwrap()];
    binaries.run("etcdutl", &arguments);
    // And the agent takes the file that age-keygen has written.
    let own = folder.path().join("own.db");
    let arguments =
        ["restore", "--store", &place, "--lineage", "blue", "--database", own.to_str().unwrap(), "-o", "json"];
    let came = run(&[&arguments[..], &["--identity-file", pair.identity()]].concat()).json();
    assert_eq!(came["revision"].as_i64(), Some(last), "{came}");
}

#[test]
fn age_and_zstd_and_etcds_own_tools_restore_it() {
    each_version(by_hand);
}

async fn goes_on(binaries: &Binaries) {
    let (store, [first, second]) = (tempfile::tempdir().unwrap(), [Pair::new(), Pair::new()]);
    let etcd = Etcd::start(binaries);
    let mut client = etcd.connect().await;
    let mut rng = fastrand::Rng::with_seed(11);
    let mut moments = Vec::new();
    let at = address(store.path());
    // Killed and started again, it goes on in the same generation: what it reads of the store takes no private key.
    for round in 0..2 {
        let archive = Archive::into(&etcd, &["--store", &at, "--recipients-file", first.recipients()]);
        recorded(store.path(), 1, 1).await;
        let moment = write(&mut client, round, &mut rng).await;
        recorded(store.path(), 1, moment.revision).await;
        moments.push((moment, &first));
        archive.kill();
    }
    assert_eq!(chains(store.path()).await.len(), 1, "nothing called for a second full snapshot");

    // The key is changed while it runs: a new generation, which the old key does not read, and no revision between the two.
    let file = tempfile::tempdir().unwrap();
    let changing = file.path().join("recipients");
    fs::copy(first.recipients(), &changing).unwrap();
    let archive = Archive::into(&etcd, &["--store", &at, "--recipients-file", changing.to_str().unwrap()]);
    let moment = write(&mut client, 2, &mut rng).await;
    recorded(store.path(), 1, moment.revision).await;
    fs::copy(second.recipients(), &changing).unwrap();
    client.put("stored", "by the new one", None).await.unwrap();
    recorded(store.path(), 2, 1).await;
    let moment = write(&mut client, 3, &mut rng).await;
    let newest = recorded(store.path(), 2, moment.revision).await;
    moments.push((moment, &second));
    assert_eq!(newest.full.data.recipients(), [second.fingerprint()]);
    archive.stop();
    let all = chains(store.path()).await;
    assert!(all[0].head() >= all[1].full.revision, "what lies between the two is in neither");
    assert!(all[0].links.iter().all(|link| link.delta.data.recipients() == [first.fingerprint()]));

    // Encryption is turned off: again a new one.
    let archive = Archive::into(&etcd, &["--store", &at]);
    let newest = recorded(store.path(), 3, 1).await;
    assert!(newest.full.data.recipients().is_empty());
    archive.stop();
    restores(store.path(), &moments, [&first, &second]);
}

/// Each moment comes back by its own pair's identity, and by no other.
fn restores(store: &std::path::Path, moments: &[(Moment, &Pair)], pairs: [&Pair; 2]) {
    let folder = tempfile::tempdir().unwrap();
    for (Moment { revision, hash }, own) in moments {
        let database = folder.path().join(revision.to_string());
        let (place, to) = (address(store), revision.to_string());
        let arguments = ["restore", "--store", &place, "--lineage", "blue", "--to", &to, "--database"];
        let arguments = [&arguments[..], &[database.to_str().unwrap(), "-o", "json", "--identity-file"]].concat();
        for pair in pairs {
            let ended = run(&[&arguments[..], &[pair.identity()]].concat());
            assert_eq!(ended.success, std::ptr::eq(pair, *own), "{}", ended.stderr);
        }
        assert_eq!(Binaries::hash(&database, revision.unsigned_abs()), u64::from(*hash), "revision {revision}");
    }
}

#[test]
fn an_archive_goes_on_with_public_keys_alone_and_begins_anew_when_they_change() {
    each_version(goes_on);
}

#[test]
fn an_archive_without_its_recipients_ends_at_once_and_writes_nothing() {
    let store = tempfile::tempdir().unwrap();
    let place = address(store.path());
    let arguments = ["archive", "--store", &place, "--lineage", "blue", "--recipients-file", "/nowhere/recipients"];
    let output = command(&arguments).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("/nowhere/recipients"), "{said}");
    assert_eq!(fs::read_dir(store.path()).unwrap().count(), 0);
}
