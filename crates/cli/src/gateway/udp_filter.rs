//! The filter of UDP senders: `--udp-filter`.

use std::env;

use anyhow::{Context, Result};
use fullsend_gateway::{Config, UdpFiltering};

/// The environment variable with the filter, for programs whose caller cannot pass an option.
const UDP_FILTER: &str = "FULLSEND_UDP_FILTER";

/// Sets the filter from the option, or else from the environment.
///
/// # Errors
/// Returns an error if the environment has a word that the option does not accept: a requested filter is
/// never ignored.
pub(super) fn apply(option: Option<UdpFiltering>, config: &mut Config) -> Result<()> {
    let requested = match (option, env::var_os(UDP_FILTER)) {
        (Some(filter), _) => Some(filter),
        (None, Some(word)) => {
            let filter = parse(&word.to_string_lossy()).map_err(anyhow::Error::msg);
            Some(filter.context(UDP_FILTER)?)
        }
        (None, None) => None,
    };
    if let Some(filter) = requested {
        config.udp_filtering = filter;
    }
    Ok(())
}

/// Parses the option's value.
pub(super) fn parse(word: &str) -> Result<UdpFiltering, String> {
    Ok(match word {
        "any" => UdpFiltering::EndpointIndependent,
        "address" => UdpFiltering::AddressDependent,
        "address-port" => UdpFiltering::AddressAndPortDependent,
        _ => {
            return Err(format!(
                "`{word}` is not a filter of datagrams; write any, address or address-port"
            ));
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_has_a_word_and_other_words_are_refused() {
        assert_eq!(parse("address"), Ok(UdpFiltering::default()));
        assert_eq!(parse("any"), Ok(UdpFiltering::EndpointIndependent));
        for word in ["", "none", "ADDRESS"] {
            let error = parse(word).unwrap_err();
            assert!(error.contains("address-port"), "{error}");
        }
    }

    #[test]
    fn an_option_sets_the_filter() {
        let mut config = Config::default();
        apply(Some(UdpFiltering::EndpointIndependent), &mut config).unwrap();
        assert_eq!(config.udp_filtering, UdpFiltering::EndpointIndependent);
    }
}
