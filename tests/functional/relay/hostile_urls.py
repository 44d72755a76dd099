"""URLs by which somebody tries to reach what only this machine or its network reaches.

`{port}` is that of an endpoint on 127.0.0.1 and on ::1, which must not see one connection.
"""

from __future__ import annotations

LITERALS = [
    # loopback, as it is written and as it may be written
    "http://127.0.0.1:{port}/", "http://127.0.0.2:{port}/", "http://127.255.255.254:{port}/", "http://127.1:{port}/",
    "http://127.0.1:{port}/", "http://2130706433:{port}/", "http://0x7f000001:{port}/", "http://0x7f.0.0.1:{port}/",
    "http://0x7f.1:{port}/", "http://017700000001:{port}/", "http://0177.0.0.1:{port}/", "http://0177.0.0.0x1:{port}/",
    "http://0X7F.0X0.0X0.0X1:{port}/", "http://127.0.0.1.:{port}/", "http://127.0.0.01:{port}/",
    "http://127.000.000.001:{port}/", "http://00000177.0.0.1:{port}/", "http://%31%32%37.0.0.1:{port}/",
    "http://127%2e0%2e0%2e1:{port}/", "http://0:{port}/", "http://0.0.0.0:{port}/", "http://0x0:{port}/",
    "http://00:{port}/", "http://[::1]:{port}/", "http://[0:0:0:0:0:0:0:1]:{port}/", "http://[0000::0001]:{port}/",
    "http://[::]:{port}/", "http://[::127.0.0.1]:{port}/", "http://[::ffff:127.0.0.1]:{port}/",
    "http://[::ffff:7f00:1]:{port}/", "http://[0:0:0:0:0:ffff:127.0.0.1]:{port}/", "http://[::ffff:0:127.0.0.1]:{port}/",
    "http://[64:ff9b::127.0.0.1]:{port}/", "http://[64:ff9b::7f00:1]:{port}/", "http://[64:ff9b:1::127.0.0.1]:{port}/",
    "http://[2002:7f00:1::]:{port}/", "http://[2001:0:7f00:1::]:{port}/", "http://[2001:0:4136:e378:8000:63bf:80ff:fffe]:{port}/",
    "https://127.0.0.1:{port}/", "HTTP://127.0.0.1:{port}/", "http://127.0.0.1:{port}", "http://127.0.0.1:{port}?x",
    "http://127.0.0.1:{port}#x", "http:127.0.0.1:{port}/", "http:/127.0.0.1:{port}/", "http:///127.0.0.1:{port}/",
    "http:////127.0.0.1:{port}/",
    # metadata of clouds, private and other networks
    "http://169.254.169.254/latest/meta-data/", "http://2852039166/", "http://0xa9fea9fe/", "http://0251.0376.0251.0376/",
    "http://169.254.169.254.:80/", "http://[::ffff:169.254.169.254]/", "http://[::ffff:a9fe:a9fe]/",
    "http://[fd00:ec2::254]/latest/", "http://[64:ff9b::a9fe:a9fe]/", "http://[2002:a9fe:a9fe::]/", "http://100.100.100.200/",
    "http://192.0.0.192/", "http://10.0.0.1/", "http://10.1/", "http://172.16.0.1/", "http://172.31.255.255/",
    "http://192.168.0.1/", "http://192.168.257/", "http://100.64.0.1/", "http://198.18.0.1/", "http://192.0.2.1/",
    "http://198.51.100.1/", "http://203.0.113.1/", "http://224.0.0.1/", "http://239.255.255.250:1900/", "http://240.0.0.1/",
    "http://255.255.255.255/", "http://[fe80::1]:{port}/", "http://[fe80::1%25lo]:{port}/", "http://[fe80::1%lo]:{port}/",
    "http://[fc00::1]/", "http://[fdff::1]/", "http://[fec0::1]/", "http://[ff02::1]/", "http://[100::1]/",
    "http://[2001:db8::1]/", "http://[3fff::1]/",
    # who is the host?
    "http://example.com@127.0.0.1:{port}/", "http://example.com:80@127.0.0.1:{port}/", "http://127.0.0.1:{port}@127.0.0.1:{port}/",
    "http://a@b@127.0.0.1:{port}/", "http://example.com\\@127.0.0.1:{port}/", "http://127.0.0.1:{port}\\@example.com/",
    "http://127.0.0.1:{port}\\.example.com/", "http:\\\\127.0.0.1:{port}/", "http://example.com#@127.0.0.1:{port}/",
    "http://example.com?@127.0.0.1:{port}/", "http://1.1.1.1 &@127.0.0.1:{port}/", "http://127.0.0.1:{port}\t/",
    "http://127.0.0.1\n:{port}/", "\thttp://127.0.0.1:{port}/", "http://127.0.0.1\x00.example.com:{port}/",
    "http://127.0.0.1%00.example.com:{port}/", "http://127.0.0.1%09:{port}/", "http://127.0.0.1:{port}:80/",
    "http://[::1]:{port}.example.com/", "http://[::1].example.com:{port}/", "http://127.0.0.1:0{port}/",
    "http://127.0.0.1:99999/", "http://127.0.0.1:-1/", "http://@127.0.0.1:{port}/", "http://:@127.0.0.1:{port}/",
    # characters that become others
    "http://①②⑦.0.0.1:{port}/", "http://127。0。0。1:{port}/", "http://127\uff0e0\uff0e0\uff0e1:{port}/", "http://ⓛⓞⓒⓐⓛⓗⓞⓢⓣ:{port}/",
    "http://%e2%91%a0%e2%91%a1%e2%91%a6.0.0.1:{port}/", "http://127%E3%80%820%E3%80%820%E3%80%821:{port}/",
    "http://loc\u00adalhost:{port}/", "http://loc%C2%ADalhost:{port}/",
    # names that this machine knows
    "http://localhost:{port}/", "http://LOCALHOST:{port}/", "http://localhost.:{port}/", "http://ip6-localhost:{port}/",
    "http://%6c%6f%63alhost:{port}/",
    # other ways to a file or a socket
    "file:///etc/passwd", "gopher://127.0.0.1:{port}/_GET", "http+unix://%2Fvar%2Frun%2Fdocker.sock/", "ftp://127.0.0.1:{port}/",
    "javascript:alert(1)", "//127.0.0.1:{port}/", "127.0.0.1:{port}", "http://", "http://:{port}/", "http://./", "http://../",
]  # fmt: skip

FORBIDDEN_ANSWERS = [
    ["127.0.0.1"], ["::1"], ["127.0.0.1", "::1"], ["10.0.0.1"], ["169.254.169.254"], ["fe80::1%lo"],
    ["::ffff:127.0.0.1"], ["::ffff:10.0.0.1"], ["64:ff9b::7f00:1"], ["2002:7f00:1::"], ["2001:0:7f00:1::1"],
    ["0.0.0.0"], ["::"], ["fd00::1"], ["fec0::1"], ["::127.0.0.1"], ["100.64.0.1"], ["224.0.0.1"], ["ff02::1"],
    ["255.255.255.255"], ["not an address"], ["127.0.0.1\n"], [""],
]  # fmt: skip
"""What a look-up may answer."""
