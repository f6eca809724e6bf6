//! The chaos command: brings up what it needs, then starts itself where pods can be reached. Disturbs nothing itself.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use clap::Args;

use super::cluster::{Context, code};
use crate::chaos::schedule::Versions;
use crate::chaos::session::{self, Session};
use crate::chaos::summary;
use crate::deploy;
use crate::lab::NODES_MAX;
use crate::progress::Progress;
use crate::provider::ProviderKind;
use crate::workspace;

/// What chaos is asked for.
#[derive(Debug, Clone, Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch of the command line")]
pub struct Options {
    /// The seed of the schedule and of the clients; a new one each time when not given.
    #[arg(long)]
    seed: Option<u64>,
    /// For how many minutes faults are made. All writes are read back in the end, so more seeds say more than more time.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=60))]
    minutes: u16,
    /// The version of etcd; the operator's default when not given.
    #[arg(long)]
    version: Option<String>,
    /// Doesn't change etcd's minor version: no upgrade is among the faults, so that all minutes are on the version that it
    /// begins with.
    #[arg(long)]
    stay: bool,
    /// Begins with the last minor version of etcd and goes down to the first among the faults.
    #[arg(long, conflicts_with_all = ["version", "stay"])]
    down: bool,
    /// Runs this schedule instead of one made from a seed.
    #[arg(long, conflicts_with_all = ["seed", "minutes", "version", "stay", "down"])]
    replay: Option<PathBuf>,
    /// When it fails: runs parts of its schedule to find a shorter one that fails too.
    #[arg(long)]
    shrink: bool,
    /// Shows the report as JSON.
    #[arg(long)]
    json: bool,
    /// Runs nothing: shows all runs that were kept in this folder as tables; those in `.cache/chaos` when none is given.
    #[arg(long, exclusive = true, value_name = "FOLDER", num_args = 0..=1)]
    summary: Option<Vec<PathBuf>>,
    /// Runs nothing: judges a run that was kept in this folder once more, by the checks of now.
    #[arg(long, exclusive = true, value_name = "FOLDER")]
    judge: Option<PathBuf>,
    /// Don't install the operator: it is there.
    #[arg(long)]
    no_deploy: bool,
    /// Run at once: this program was started where pods can be reached.
    #[arg(long, hide = true)]
    inside: bool,
}

/// Does it. Returns the exit code: 1 if a promise was broken.
pub async fn run(context: &Context, options: Options) -> anyhow::Result<u8> {
    if let Some(given) = &options.summary {
        let kept = workspace::cache().join("chaos");
        println!("{}", summary::of_all(given.first().unwrap_or(&kept))?);
        return Ok(0);
    }
    if let Some(folder) = &options.judge {
        let (violations, promotions) = session::judge(folder)?;
        println!("{promotions}");
        for violation in &violations {
            println!("{violation}");
        }
        println!("{}", if violations.is_empty() { "nothing is wrong" } else { "promises were broken" });
        return Ok(u8::from(!violations.is_empty()));
    }
    if options.inside {
        let session = Session {
            seed: options.seed,
            length: Duration::from_mins(options.minutes.into()),
            version: options.version,
            versions: match (options.stay, options.down) {
                (true, _) => Versions::Stay,
                (false, true) => Versions::Down,
                (false, false) => Versions::Up,
            },
            replay: options.replay,
            shrink: options.shrink,
            json: options.json,
        };
        return Ok(u8::from(!session.play().await?));
    }
    let progress = Progress::new();
    let provider = context.provider().await?;
    ensure!(provider.kind() == ProviderKind::Local, "chaos needs the local cluster: it switches nodes off");
    provider.up(NODES_MAX, &progress).await?;
    if !options.no_deploy {
        deploy::deploy(&provider, &progress).await?;
    }
    let own = std::env::current_exe().context("failed to find this program")?;
    let own = own.to_str().context("the path of this program is not text")?;
    let command = provider
        .exec(own)?
        .env("QUORATE_PROVIDER", provider.kind().to_string())
        .args(["chaos", "--inside"])
        .args(arguments(&options)?);
    Ok(code(command.show().await?))
}

/// The same options for the program that is started inside.
fn arguments(options: &Options) -> anyhow::Result<Vec<String>> {
    let Options {
        seed,
        minutes,
        version,
        stay,
        down,
        replay,
        shrink,
        json,
        summary: _,
        judge: _,
        no_deploy: _,
        inside: _,
    } = options;
    let mut arguments = Vec::new();
    match replay {
        Some(path) => {
            // It is started in the same folder, but says the path in full all the same: a schedule may be anywhere.
            let path = path.canonicalize().with_context(|| format!("failed to find {}", path.display()))?;
            arguments.extend(["--replay".into(), path.to_str().context("the path is not text")?.to_owned()]);
        }
        None => arguments.extend(["--minutes".into(), minutes.to_string()]),
    }
    arguments.extend(seed.iter().flat_map(|seed| ["--seed".into(), seed.to_string()]));
    arguments.extend(version.iter().flat_map(|version| ["--version".into(), version.clone()]));
    arguments.extend(stay.then(|| "--stay".into()));
    arguments.extend(down.then(|| "--down".into()));
    arguments.extend(shrink.then(|| "--shrink".into()));
    arguments.extend(json.then(|| "--json".into()));
    Ok(arguments)
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::cli::Cli;

    #[test]
    fn what_was_asked_for_is_handed_on() {
        let options = Options {
            seed: Some(7),
            minutes: 2,
            version: Some("3.7.3".into()),
            stay: true,
            down: false,
            replay: None,
            shrink: true,
            json: true,
            summary: None,
            judge: None,
            no_deploy: true,
            inside: false,
        };
        let expected = ["--minutes", "2", "--seed", "7", "--version", "3.7.3", "--stay", "--shrink", "--json"];
        assert_eq!(arguments(&options).unwrap(), expected);
        let down = Options { version: None, stay: false, down: true, ..options.clone() };
        assert_eq!(arguments(&down).unwrap(), ["--minutes", "2", "--seed", "7", "--down", "--shrink", "--json"]);
        let gone = Options { replay: Some("/no/such/schedule".into()), ..options };
        assert!(arguments(&gone).unwrap_err().to_string().contains("/no/such/schedule"));
    }

    #[test]
    fn a_schedule_says_itself_whether_it_stays() {
        let parse = |line: &str| Cli::try_parse_from(line.split(' '));
        assert!(parse("quorate-e2e chaos --stay --version 3.5.35").is_ok());
        assert!(parse("quorate-e2e chaos --replay schedule.json").is_ok());
        assert!(parse("quorate-e2e chaos --replay schedule.json --stay").is_err());
        assert!(parse("quorate-e2e chaos --down").is_ok());
        for other in ["--stay", "--version 3.6.16", "--replay schedule.json"] {
            assert!(parse(&format!("quorate-e2e chaos --down {other}")).is_err(), "{other}");
        }
    }
}
