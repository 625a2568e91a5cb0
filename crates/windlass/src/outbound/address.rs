//! Which addresses are anybody's to call: all but the ranges that IANA sets aside, and those that
//! stand for such an address in another notation.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use windlass_kernel::{Error, ErrorCode, ErrorKind};

/// A range of addresses: `10.0.0.0/8`, `fd00::/8`, or one address alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Cidr {
    first: IpAddr,
    prefix: u8,
}

impl Cidr {
    const fn v4(a: u8, b: u8, c: u8, d: u8, prefix: u8) -> Self {
        Self { first: IpAddr::V4(Ipv4Addr::new(a, b, c, d)), prefix }
    }

    const fn v6(bits: u128, prefix: u8) -> Self {
        Self { first: IpAddr::V6(Ipv6Addr::from_bits(bits)), prefix }
    }

    /// Whether an address is in it. A range of one family holds nothing of the other.
    ///
    /// ```
    /// use windlass::outbound::Cidr;
    ///
    /// let range: Cidr = "10.0.0.0/8".parse()?;
    /// assert!(range.contains("10.1.2.3".parse().unwrap()));
    /// # Ok::<(), windlass::Error>(())
    /// ```
    pub fn contains(&self, address: IpAddr) -> bool {
        let (width, own) = bits(self.first);
        let (other_width, other) = bits(address);
        let low = width - u32::from(self.prefix);
        // A shift by the whole width is no shift.
        let head = |bits: u128| bits.checked_shr(low).unwrap_or(0);
        width == other_width && head(own) == head(other)
    }
}

// How many bits the family has, and the address as a number.
fn bits(address: IpAddr) -> (u32, u128) {
    match address {
        IpAddr::V4(address) => (32, u128::from(address.to_bits())),
        IpAddr::V6(address) => (128, address.to_bits()),
    }
}

impl FromStr for Cidr {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let wrong = |why: &str| {
            let message = format!("{text:?} is no range of addresses: {why}");
            Error::new(ErrorKind::Invalid, ErrorCode::InvalidCidr, message)
        };
        let (address, prefix) = match text.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix)),
            None => (text, None),
        };
        let first: IpAddr =
            address.parse().map_err(|_| wrong("write it as 10.0.0.0/8 or fd00::/8"))?;
        let (width, number) = bits(first);
        let prefix: u8 = match prefix {
            None => width as u8,
            Some(digits) => {
                digits.parse().ok().filter(|prefix| u32::from(*prefix) <= width).ok_or_else(
                    || wrong(&format!("after the slash is a number from 0 to {width}")),
                )?
            }
        };
        let low = width - u32::from(prefix);
        let rest = 1_u128.checked_shl(low).map_or(u128::MAX, |end| end - 1);
        if number & rest != 0 {
            return Err(wrong("the address has bits set behind the prefix"));
        }
        // Addresses are compared in their plain notation, and a mapped range would hold none of them.
        match first {
            IpAddr::V6(mapped) if prefix >= 96 => match mapped.to_ipv4_mapped() {
                Some(plain) => Ok(Self { first: IpAddr::V4(plain), prefix: prefix - 96 }),
                None => Ok(Self { first, prefix }),
            },
            _ => Ok(Self { first, prefix }),
        }
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.first, self.prefix)
    }
}

/// The reserved ranges of IPv4. Ranges that are reachable though they are listed (AS112, AMT) are not
/// here.
const SPECIAL_V4: &[(Cidr, &str)] = &[
    (Cidr::v4(0, 0, 0, 0, 8), "this network"),
    (Cidr::v4(10, 0, 0, 0, 8), "private"),
    (Cidr::v4(100, 64, 0, 0, 10), "shared by a provider's customers"),
    (Cidr::v4(127, 0, 0, 0, 8), "loopback"),
    // A public number that Azure answers on from inside each machine.
    (Cidr::v4(168, 63, 129, 16, 32), "a metadata service"),
    (Cidr::v4(169, 254, 0, 0, 16), "link-local, where metadata services are"),
    (Cidr::v4(172, 16, 0, 0, 12), "private"),
    (Cidr::v4(192, 0, 0, 0, 24), "for protocols"),
    (Cidr::v4(192, 0, 2, 0, 24), "for documentation"),
    (Cidr::v4(192, 88, 99, 0, 24), "a 6to4 relay"),
    (Cidr::v4(192, 168, 0, 0, 16), "private"),
    (Cidr::v4(198, 18, 0, 0, 15), "for benchmarks"),
    (Cidr::v4(198, 51, 100, 0, 24), "for documentation"),
    (Cidr::v4(203, 0, 113, 0, 24), "for documentation"),
    (Cidr::v4(224, 0, 0, 0, 4), "multicast"),
    (Cidr::v4(255, 255, 255, 255, 32), "broadcast"),
    (Cidr::v4(240, 0, 0, 0, 4), "reserved"),
];

/// The reserved ranges of IPv6, the narrow ranges before the wide ones that hold them.
const SPECIAL_V6: &[(Cidr, &str)] = &[
    (Cidr::v6(0, 128), "unspecified"),
    (Cidr::v6(1, 128), "loopback"),
    (Cidr::v6(0, 96), "an IPv4 address in an old notation"),
    (Cidr::v6(0xffff_0000 << 32, 96), "an IPv4 address in translation"),
    (Cidr::v6(0x0064_ff9b_0001 << 80, 48), "an IPv4 address behind a private translator"),
    (Cidr::v6(0x0100 << 112, 64), "discarded"),
    (Cidr::v6(0x2001_0000 << 96, 32), "Teredo"),
    (Cidr::v6(0x2001_0002_0000 << 80, 48), "for benchmarks"),
    (Cidr::v6(0x2001_0db8 << 96, 32), "for documentation"),
    (Cidr::v6(0x2001 << 112, 23), "for protocols"),
    (Cidr::v6(0x2002 << 112, 16), "6to4"),
    (Cidr::v6(0x3ffe << 112, 16), "of a network that is gone"),
    (Cidr::v6(0x3fff << 112, 20), "for documentation"),
    (Cidr::v6(0xfc00 << 112, 7), "unique local"),
    (Cidr::v6(0xfe80 << 112, 10), "link-local"),
    (Cidr::v6(0xfec0 << 112, 10), "site-local"),
    (Cidr::v6(0xff00 << 112, 8), "multicast"),
];

/// The only part of IPv6 from which public addresses are given out.
const GLOBAL_V6: Cidr = Cidr::v6(0x2000 << 112, 3);
/// IPv4 through a translator; resolvers of networks without IPv4 answer with these.
const NAT64: Cidr = Cidr::v6(0x0064_ff9b << 96, 96);

/// Why an address is not public, if it is not.
pub(super) fn special(address: IpAddr) -> Option<&'static str> {
    let listed = |table: &[(Cidr, &'static str)]| {
        table.iter().find(|(range, _)| range.contains(address)).map(|(_, what)| *what)
    };
    let address = match address {
        IpAddr::V4(_) => return listed(SPECIAL_V4),
        IpAddr::V6(address) => address,
    };
    if let Some(inner) = address.to_ipv4_mapped() {
        return special(inner.into());
    }
    let last = Ipv4Addr::from_bits(address.to_bits() as u32);
    if NAT64.contains(address.into()) {
        return special(last.into());
    }
    let outside = || (!GLOBAL_V6.contains(address.into())).then_some("not given out to anybody");
    // ISATAP: a router of that network unpacks the IPv4 address at the end.
    let isatap = matches!(address.segments(), [_, _, _, _, 0 | 0x0200, 0x5efe, _, _]);
    let inside = || if isatap { special(last.into()) } else { None };
    listed(SPECIAL_V6).or_else(outside).or_else(inside)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn a_mapped_range_is_the_range_that_it_stands_for() {
        for (written, plain, held) in [
            ("::ffff:10.0.0.0/104", "10.0.0.0/8", "10.1.2.3"),
            ("::ffff:192.0.2.7", "192.0.2.7/32", "192.0.2.7"),
            ("::ffff:0:0/96", "0.0.0.0/0", "8.8.8.8"),
        ] {
            let range: Cidr = written.parse().unwrap();
            assert_eq!(range.to_string(), plain);
            assert!(range.contains(held.parse().unwrap()), "{written}");
        }
    }

    #[test]
    fn ranges_read_and_contain() {
        let range: Cidr = "10.0.0.0/8".parse().unwrap();
        assert!(range.contains(ip("10.255.255.255")) && !range.contains(ip("11.0.0.0")));
        assert!(!range.contains(ip("::ffff:10.0.0.1")));
        assert_eq!(range.to_string(), "10.0.0.0/8");
        let one: Cidr = "::1".parse().unwrap();
        assert!(one.contains(ip("::1")) && !one.contains(ip("::2")));
        let all: Cidr = "0.0.0.0/0".parse().unwrap();
        assert!(all.contains(ip("255.1.2.3")) && !all.contains(ip("::")));
        let all: Cidr = "::/0".parse().unwrap();
        assert!(all.contains(ip("ffff::")) && !all.contains(ip("1.1.1.1")));
        for (text, expect) in [
            ("10.0.0.1/8", "bits set behind the prefix"),
            ("10.0.0.0/33", "from 0 to 32"),
            ("fd00::/129", "from 0 to 128"),
            ("10.0.0.0/", "from 0 to 32"),
            ("localhost", "10.0.0.0/8"),
            ("", "10.0.0.0/8"),
        ] {
            let error = text.parse::<Cidr>().unwrap_err();
            assert_eq!(error.code(), "INVALID_CIDR");
            assert!(error.to_string().contains(expect), "{error}");
        }
    }

    /// The registries of special-purpose addresses of IANA, with the first and the last address of
    /// each range that is not globally reachable.
    #[test]
    fn every_special_range_is_refused_to_its_edges() {
        let ranges = [
            ("0.0.0.0", "0.255.255.255"),
            ("10.0.0.0", "10.255.255.255"),
            ("100.64.0.0", "100.127.255.255"),
            ("127.0.0.0", "127.255.255.255"),
            ("169.254.0.0", "169.254.255.255"),
            ("172.16.0.0", "172.31.255.255"),
            ("192.0.0.0", "192.0.0.255"),
            ("192.0.2.0", "192.0.2.255"),
            ("192.88.99.0", "192.88.99.255"),
            ("192.168.0.0", "192.168.255.255"),
            ("198.18.0.0", "198.19.255.255"),
            ("198.51.100.0", "198.51.100.255"),
            ("203.0.113.0", "203.0.113.255"),
            ("224.0.0.0", "239.255.255.255"),
            ("240.0.0.0", "255.255.255.255"),
            ("168.63.129.16", "168.63.129.16"),
            ("::", "::ffff:ffff"),
            ("::ffff:0.0.0.0", "::ffff:0.255.255.255"),
            ("::ffff:10.0.0.0", "::ffff:10.255.255.255"),
            ("::ffff:127.0.0.0", "::ffff:127.255.255.255"),
            ("::ffff:0:0:0", "::ffff:0:ffff:ffff"),
            ("64:ff9b::a9fe:0", "64:ff9b::a9fe:ffff"),
            ("64:ff9b:1::", "64:ff9b:1:ffff:ffff:ffff:ffff:ffff"),
            ("100::", "100::ffff:ffff:ffff:ffff"),
            ("100:0:0:1::", "100:0:0:1:ffff:ffff:ffff:ffff"),
            ("2001::", "2001:1ff:ffff:ffff:ffff:ffff:ffff:ffff"),
            ("2001:db8::", "2001:db8:ffff:ffff:ffff:ffff:ffff:ffff"),
            ("2002::", "2002:ffff:ffff:ffff:ffff:ffff:ffff:ffff"),
            ("3fff::", "3fff:fff:ffff:ffff:ffff:ffff:ffff:ffff"),
            ("4000::", "5eff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"),
            ("5f00::", "5f00:ffff:ffff:ffff:ffff:ffff:ffff:ffff"),
            ("fc00::", "fdff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"),
            ("fe80::", "febf:ffff:ffff:ffff:ffff:ffff:ffff:ffff"),
            ("fec0::", "feff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"),
            ("ff00::", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"),
        ];
        for (first, last) in ranges {
            for address in [first, last] {
                assert!(special(ip(address)).is_some(), "{address} passes");
            }
        }
    }

    #[test]
    fn what_lies_beside_them_is_public() {
        for address in [
            "1.0.0.0",
            "9.255.255.255",
            "11.0.0.0",
            "100.63.255.255",
            "100.128.0.0",
            "126.255.255.255",
            "128.0.0.0",
            "168.63.129.15",
            "168.63.129.17",
            "169.253.255.255",
            "169.255.0.0",
            "172.15.255.255",
            "172.32.0.0",
            "191.255.255.255",
            "192.0.1.0",
            "192.0.3.0",
            "192.31.196.1",
            "192.52.193.1",
            "192.167.255.255",
            "192.169.0.0",
            "192.175.48.1",
            "198.17.255.255",
            "198.20.0.0",
            "198.51.99.255",
            "203.0.112.255",
            "203.0.114.0",
            "223.255.255.255",
            "::ffff:8.8.8.8",
            "64:ff9b::808:808",
            "2001:200::",
            "2001:4860:4860::8888",
            "2001:db7:ffff::",
            "2001:db9::",
            "2003::",
            "2606:4700:4700::1111",
            "2620:4f:8000::1",
            "2a00::5efe:8.8.8.8",
        ] {
            assert_eq!(special(ip(address)), None, "{address}");
        }
        assert_eq!(special(ip("2a00::5efe:10.0.0.1")), Some("private"));
        assert_eq!(special(ip("2a00::200:5efe:127.0.0.1")), Some("loopback"));
    }
}
