use std::net::{AddrParseError, IpAddr};

use ipnet::IpNet;

/// A text that is no address, or no address with prefix length.
#[derive(Debug, PartialEq, Eq)]
pub struct ParseError(String);

impl std::fmt::Display for ParseError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ParseError {}

impl From<AddrParseError> for ParseError {
    fn from(error: AddrParseError) -> Self {
        Self(error.to_string())
    }
}

/// An address: no leading zeros; IPv4 in IPv6 becomes IPv4, as Go prints it.
pub fn parse_address(text: &str) -> Result<IpAddr, ParseError> {
    Ok(text.parse::<IpAddr>()?.to_canonical())
}

/// An address with prefix length, its host bits kept.
pub fn parse_cidr(text: &str) -> Result<IpNet, ParseError> {
    let (address, prefix) = text
        .split_once('/')
        .ok_or_else(|| ParseError("the prefix length (as /24) is missing".to_owned()))?;
    let address: IpAddr = address.parse()?;
    let plain = !prefix.is_empty()
        && prefix.bytes().all(|b| b.is_ascii_digit())
        && (prefix == "0" || !prefix.starts_with('0'));
    let refused = || ParseError(format!("{prefix:?} is no prefix length of this family"));
    let length: u8 = prefix.parse().ok().filter(|_| plain).ok_or_else(refused)?;
    IpNet::new(address, length).map_err(|_| refused())
}

/// A requested address: bare, or with a prefix length that does not count.
pub fn parse_requested(text: &str) -> Result<IpAddr, ParseError> {
    if text.contains('/') {
        parse_cidr(text).map(|net| net.addr().to_canonical())
    } else {
        parse_address(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_forms_are_taken() {
        for text in ["10.1.2.3/24", "0.0.0.0/0", "fd00::1/128", "10.0.0.0/8"] {
            assert_eq!(parse_cidr(text).unwrap().to_string(), text);
        }
        for text in [
            "10.1.2.3",
            "010.1.2.3/8",
            "10.1.2.3/",
            "10.1.2.3/+8",
            "10.1.2.3/08",
            "10.1.2.3/33",
            "::/129",
            "10.1.2/24",
            " 10.0.0.0/8",
        ] {
            assert!(parse_cidr(text).is_err(), "{text}");
        }
        assert_eq!(
            parse_address("::ffff:10.0.0.1").unwrap().to_string(),
            "10.0.0.1"
        );
        assert_eq!(
            parse_requested("10.0.0.1/24").unwrap(),
            parse_address("10.0.0.1").unwrap()
        );
    }
}
