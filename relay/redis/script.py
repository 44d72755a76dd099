"""The script that adds a message only once. The server runs it atomically."""

from __future__ import annotations

from hashlib import sha1
from typing import Final

# KEYS: the stream or list; the marker, which exists if the message was added; and for Dramatiq, a hash of messages,
# because its list contains only their ids (the id is ARGV[4], the message ARGV[5]). ARGV: the lifetime of the marker
# (ms), the length limit for the list (0 = none), and the command followed by its words after the key.
# A repeat writes the marker again, so that its lifetime restarts, and WAITAOF has a write to wait for.
# The marker is set last: a script that fails is not rolled back, and with a marker but without the message, a repeat
# would be dropped and the message lost.
SCRIPT: Final = b"""
if KEYS[2] then
  local known = redis.pcall('SET', KEYS[2], '1', 'PX', ARGV[1], 'XX', 'GET')
  if type(known) == 'table' then return known end
  if known then return false end
end
local limit = tonumber(ARGV[2])
if limit > 0 then
  local length = redis.pcall('LLEN', KEYS[1])
  if type(length) == 'table' then return length end
  if length >= limit then return redis.error_reply('FULL the list has ' .. length .. ' elements') end
end
if KEYS[3] then
  local kept = redis.pcall('HSET', KEYS[3], ARGV[4], ARGV[5])
  if type(kept) == 'table' then return kept end
  table.remove(ARGV, 5)
end
local added = redis.pcall(ARGV[3], KEYS[1], unpack(ARGV, 4))
if type(added) == 'table' then return added end
if KEYS[2] then redis.call('SET', KEYS[2], '1', 'PX', ARGV[1]) end
return added
"""
SHA: Final = sha1(SCRIPT, usedforsecurity=False).hexdigest().encode()
