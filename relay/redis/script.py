"""The script that adds a message once: the server runs it as one step."""

from __future__ import annotations

from hashlib import sha1
from typing import Final

# KEYS: the stream or list; the marker, which says that the message was added. ARGV: how long the marker stays (ms), how
# long the list may become (0 = any), and the command with its words after the key.
# A marker is written also for a repeat: so its window begins anew, and WAITAOF has a write to wait for.
# Where the command fails the marker has to go, or the message would never be added. It goes by SET, the one command
# that is allowed for certain: it was just carried out.
SCRIPT: Final = b"""
local known = false
if KEYS[2] then
  known = redis.pcall('SET', KEYS[2], '1', 'PX', ARGV[1], 'GET')
  if type(known) == 'table' then return known end
  if known then return false end
end
local limit, added = tonumber(ARGV[2]), nil
if limit > 0 then added = redis.pcall('LLEN', KEYS[1]) end
if type(added) == 'number' and added >= limit then
  added = redis.error_reply('FULL the list has ' .. added .. ' elements')
elseif type(added) ~= 'table' then
  added = redis.pcall(ARGV[3], KEYS[1], unpack(ARGV, 4))
end
if type(added) == 'table' and added.err and KEYS[2] then redis.call('SET', KEYS[2], '1', 'PX', '1') end
return added
"""
SHA: Final = sha1(SCRIPT, usedforsecurity=False).hexdigest().encode()
