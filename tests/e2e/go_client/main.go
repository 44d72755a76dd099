// A client of duemq-frames/1 from its specification alone (docs/reference/frames.md), with nothing but Go's library.
//
//	go run . http://127.0.0.1:8787 [API-KEY]
//
// It sends 200 messages with all requests in flight at once, looks one up, cancels one, reads the deliveries as a
// stream, and prints what it got as JSON.
package main

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"
)

const (
	request, credit, cancel, ping = 1, 2, 3, 4 // from the client
	answer, data, pong, goingAway = 1, 2, 4, 5 // from the server
	last, more, brokenOff         = 0, 1, 2
	headBytes, answerHeadBytes    = 9, 5
	messages                      = 200
	topic, within                 = "go", 60 * time.Second
)

// part is a piece of an answer.
type part struct {
	status int
	what   byte
	body   []byte
}

// client is one connection.
type client struct {
	conn    net.Conn
	write   sync.Mutex
	mutex   sync.Mutex
	next    uint32
	streams map[uint32]chan part
	pongs   chan []byte
}

func dial(address, key string) (*client, error) {
	server, err := url.Parse(address)
	if err != nil {
		return nil, err
	}
	conn, err := net.DialTimeout("tcp", server.Host, within)
	if err != nil {
		return nil, err
	}
	head := "GET /v1/frames HTTP/1.1\r\nHost: " + server.Host + "\r\nConnection: Upgrade\r\nUpgrade: duemq-frames/1\r\n"
	if key != "" {
		head += "Authorization: Bearer " + key + "\r\n"
	}
	if _, err = io.WriteString(conn, head+"\r\n"); err != nil {
		return nil, err
	}
	reader := bufio.NewReader(conn)
	for first := true; ; first = false {
		line, err := reader.ReadString('\n')
		if err != nil {
			return nil, err
		}
		if first && !strings.HasPrefix(line, "HTTP/1.1 101 ") {
			return nil, errors.New("no upgrade: " + line)
		}
		if line == "\r\n" {
			break
		}
	}
	c := &client{conn: conn, streams: map[uint32]chan part{}, pongs: make(chan []byte, 1)}
	go c.read(reader)
	return c, nil
}

// read hands each part of an answer to its stream, until the connection ends.
func (c *client) read(reader io.Reader) {
	head := make([]byte, headBytes)
	for {
		if _, err := io.ReadFull(reader, head); err != nil {
			break
		}
		payload := make([]byte, binary.BigEndian.Uint32(head)-headBytes+4)
		if _, err := io.ReadFull(reader, payload); err != nil {
			break
		}
		kind, number := head[4], binary.BigEndian.Uint32(head[5:])
		var got part
		switch kind {
		case answer:
			lines := int(binary.BigEndian.Uint16(payload[3:]))
			got = part{int(binary.BigEndian.Uint16(payload)), payload[2], payload[answerHeadBytes+lines:]}
		case data:
			got = part{0, payload[0], payload[1:]}
		case pong:
			c.pongs <- payload
			continue
		default: // going away: this client only lives for a few seconds
			continue
		}
		c.mutex.Lock()
		stream := c.streams[number]
		if got.what != more {
			delete(c.streams, number)
		}
		c.mutex.Unlock()
		if stream != nil {
			stream <- got
		}
	}
	c.mutex.Lock()
	defer c.mutex.Unlock()
	for number, stream := range c.streams {
		delete(c.streams, number)
		stream <- part{0, brokenOff, nil}
	}
}

func (c *client) frame(kind byte, number uint32, payload []byte) error {
	buffer := binary.BigEndian.AppendUint32(nil, uint32(len(payload)+headBytes-4))
	buffer = binary.BigEndian.AppendUint32(append(buffer, kind), number)
	c.write.Lock()
	defer c.write.Unlock()
	_, err := c.conn.Write(append(buffer, payload...))
	return err
}

// open sends a request, whose answer comes in parts.
func (c *client) open(method, target string, body []byte, headers ...string) (uint32, chan part, error) {
	stream := make(chan part, 64)
	c.mutex.Lock()
	c.next++
	number := c.next
	c.streams[number] = stream
	c.mutex.Unlock()
	lines := strings.Join(append([]string{method + " " + target}, headers...), "\n") + "\n\n"
	return number, stream, c.frame(request, number, append([]byte(lines), body...))
}

// call returns the status and the JSON of a whole answer.
func (c *client) call(method, target string, body any) (int, map[string]any, error) {
	var text []byte
	if body != nil {
		text, _ = json.Marshal(body)
	}
	number, stream, err := c.open(method, target, text)
	if err != nil {
		return 0, nil, err
	}
	var status int
	var whole []byte
	for {
		select {
		case got := <-stream:
			if got.status != 0 {
				status = got.status
			}
			whole = append(whole, got.body...)
			switch got.what {
			case last:
				document := map[string]any{}
				return status, document, json.Unmarshal(whole, &document)
			case brokenOff:
				return status, nil, errors.New("the answer is incomplete")
			}
			if err := c.frame(credit, number, binary.BigEndian.AppendUint32(nil, uint32(len(got.body)))); err != nil {
				return 0, nil, err
			}
		case <-time.After(within):
			return 0, nil, errors.New("no answer in time")
		}
	}
}

// follow counts the records of a topic until there are enough, and then cancels the stream.
func (c *client) follow(enough int) (int, error) {
	number, stream, err := c.open("GET", "/v1/topics/"+topic+"/records", nil, "Accept: application/x-ndjson")
	if err != nil {
		return 0, err
	}
	count, rest, end := 0, []byte(nil), time.After(within)
	for count < enough {
		select {
		case got := <-stream:
			if got.what == brokenOff || (got.status != 0 && got.status != 200) {
				return count, fmt.Errorf("the stream ended: %s", got.body)
			}
			lines := bytes.Split(append(rest, got.body...), []byte("\n"))
			rest = lines[len(lines)-1]
			for _, line := range lines[:len(lines)-1] {
				var page struct{ Records []json.RawMessage }
				if len(line) > 0 && json.Unmarshal(line, &page) == nil {
					count += len(page.Records)
				}
			}
			if err := c.frame(credit, number, binary.BigEndian.AppendUint32(nil, uint32(len(got.body)))); err != nil {
				return count, err
			}
		case <-end:
			return count, errors.New("too few records in time")
		}
	}
	return count, c.frame(cancel, number, nil)
}

func run() error {
	key := ""
	if len(os.Args) > 2 {
		key = os.Args[2]
	}
	c, err := dial(os.Args[1], key)
	if err != nil {
		return err
	}
	defer c.conn.Close()
	ids, statuses, mutex := []string{}, map[string]int{}, sync.Mutex{}
	var group sync.WaitGroup
	for n := 0; n < messages; n++ {
		group.Add(1)
		go func(n int) {
			defer group.Done()
			message := map[string]any{"topic": topic, "payload": fmt.Sprint(n), "deliver_after": "2s"}
			status, document, err := c.call("POST", "/v1/messages", message)
			mutex.Lock()
			defer mutex.Unlock()
			statuses[fmt.Sprint(status)]++
			if err == nil {
				ids = append(ids, document["id"].(string))
			}
		}(n)
	}
	group.Wait()
	if len(ids) != messages {
		return fmt.Errorf("not all were accepted: %v", statuses)
	}
	_, shown, err := c.call("GET", "/v1/messages/"+ids[0], nil)
	if err != nil {
		return err
	}
	_, cancelled, err := c.call("DELETE", "/v1/messages/"+ids[1], nil)
	if err != nil {
		return err
	}
	refused, problem, err := c.call("POST", "/v1/messages", map[string]any{"topic": topic, "payload": 5})
	if err != nil {
		return err
	}
	records, err := c.follow(messages - 1)
	if err != nil {
		return err
	}
	if err := c.frame(ping, 0, []byte("still here")); err != nil {
		return err
	}
	echo := <-c.pongs
	return json.NewEncoder(os.Stdout).Encode(map[string]any{
		"statuses": statuses, "shown": shown["status"], "cancelled": cancelled["status"],
		"refused": refused, "code": problem["code"], "records": records, "pong": string(echo),
	})
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}
