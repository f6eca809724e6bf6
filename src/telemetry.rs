//! The log. It says where lines go and which, and how an error is told; what else they say is up to who writes them.

use tracing_subscriber::EnvFilter;

use crate::cli::LogFormat;

/// A filter that can't be read.
#[derive(Debug, thiserror::Error)]
#[error("failed to read the log filter {filter:?}: write for example `info` or `quorate=debug,info`")]
pub struct FilterError {
    filter: String,
    #[source]
    source: tracing_subscriber::filter::ParseError,
}

/// Starts the log, on stderr.
pub fn start(filter: &str, format: LogFormat) -> Result<(), FilterError> {
    let filter = EnvFilter::try_new(filter).map_err(|source| FilterError { filter: filter.to_owned(), source })?;
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    match format {
        LogFormat::Human => log.init(),
        LogFormat::Json => log.json().flatten_event(true).init(),
    }
    Ok(())
}

/// An error with its causes, on one line.
pub fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    let mut words = Vec::<String>::new();
    for cause in causes.map(ToString::to_string) {
        // Some errors repeat their cause in their own words.
        if !words.last().is_some_and(|last| last.ends_with(&cause)) {
            words.push(cause);
        }
    }
    words.join(": ")
}
