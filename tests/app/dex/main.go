// Command dex is a real OpenID Connect provider for tests: Dex's own server, with people who are in a file.
//
// Dex reads that file at every login and every refresh, as it asks a directory:
//
//	{"ada@example.org": {"password": "...", "groups": ["vla"]}}
//
// The first line of its output is the issuer. POST /rotate has Dex sign with a new key from then on; the key before is
// published as long as tokens that it signed may be good. It ends with its input.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"os"
	"sync/atomic"
	"time"

	"github.com/dexidp/dex/connector"
	"github.com/dexidp/dex/server"
	"github.com/dexidp/dex/storage"
	"github.com/dexidp/dex/storage/memory"
)

type person struct {
	Password string   `json:"password"`
	Groups   []string `json:"groups"`
}

// directory is a connector: what stands between Dex and where people are known.
type directory struct{ file string }

func (d *directory) Open(string, *slog.Logger) (connector.Connector, error) { return d, nil }

func (d *directory) Prompt() string { return "Email" }

func (d *directory) Login(_ context.Context, _ connector.Scopes, email, password string) (connector.Identity, bool, error) {
	found, identity, err := d.find(email)
	if err != nil || found == nil || found.Password != password {
		return connector.Identity{}, false, err
	}
	return identity, true, nil
}

func (d *directory) Refresh(_ context.Context, _ connector.Scopes, known connector.Identity) (connector.Identity, error) {
	found, identity, err := d.find(known.Email)
	if err == nil && found == nil {
		err = errors.New("nobody of that name")
	}
	return identity, err
}

func (d *directory) find(email string) (*person, connector.Identity, error) {
	text, err := os.ReadFile(d.file)
	if err != nil {
		return nil, connector.Identity{}, err
	}
	var people map[string]*person
	if err := json.Unmarshal(text, &people); err != nil {
		return nil, connector.Identity{}, err
	}
	found := people[email]
	if found == nil {
		return nil, connector.Identity{}, nil
	}
	return found, connector.Identity{UserID: email, Username: email, Email: email, EmailVerified: true, Groups: found.Groups}, nil
}

func main() {
	people := flag.String("people", "", "file of people")
	flag.Parse()

	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	logger := slog.New(slog.NewTextHandler(os.Stderr, nil))
	server.ConnectorsConfig["directory"] = func() server.ConnectorConfig { return &directory{file: *people} }
	kept := storage.WithStaticClients(memory.New(logger), []storage.Client{
		{ID: "mainspring", Name: "Mainspring", Public: true},
		{ID: "another", Name: "Another program", Public: true},
	})
	kept = storage.WithStaticConnectors(kept, []storage.Connector{{ID: "directory", Type: "directory", Name: "Directory"}})
	policy, err := server.NewRefreshTokenPolicy(logger, false, "", "", "")
	if err != nil {
		log.Fatal(err)
	}
	config := server.Config{
		Issuer:             fmt.Sprintf("http://%s/dex", listener.Addr()),
		Storage:            kept,
		Logger:             logger,
		IDTokensValidFor:   10 * time.Minute,
		RefreshTokenPolicy: policy,
	}

	var dex atomic.Pointer[server.Server]
	begin := func() {
		// It makes a new key as it begins, where the last one is due.
		made, err := server.NewServer(context.Background(), config)
		if err != nil {
			log.Fatal(err)
		}
		dex.Store(made)
	}
	begin()
	http.HandleFunc("/dex/", func(w http.ResponseWriter, r *http.Request) { dex.Load().ServeHTTP(w, r) })
	http.HandleFunc("POST /rotate", func(http.ResponseWriter, *http.Request) {
		due := func(keys storage.Keys) (storage.Keys, error) {
			keys.NextRotation = time.Time{}
			return keys, nil
		}
		if err := kept.UpdateKeys(due); err != nil {
			log.Fatal(err)
		}
		begin()
	})
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	fmt.Println(config.Issuer)
	log.Fatal(http.Serve(listener, nil))
}
