// Tests the programs of docs/languages/go.md.
package limits

import (
	"context"
	"database/sql"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

const hour = time.Hour

func onPostgres() bool { return os.Getenv("ENGINE") == "postgres" }

func open(t testing.TB) Limiter {
	t.Helper()
	address := os.Getenv("DATABASE_URL")
	if onPostgres() {
		pool, err := pgxpool.New(t.Context(), address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(pool.Close)
		return FromPostgres(pool)
	}
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	db, err := sql.Open("mysql", fmt.Sprintf("%s@tcp(%s)%s?interpolateParams=true", u.User, u.Host, u.Path))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return FromMySQL(db)
}

func ask(t testing.TB, limiter Limiter, r Request) Decision {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	decision, err := limiter(ctx, r)
	if err != nil {
		t.Fatal(err)
	}
	return decision
}

func within(t testing.TB, ms int64, most time.Duration) {
	t.Helper()
	if ms <= 0 || ms > most.Milliseconds() {
		t.Errorf("%d ms are not within %v", ms, most)
	}
}

func TestExactlyTheCapacityIsGranted(t *testing.T) {
	limiter, plan := open(t), "five"
	var remaining []int64
	var last Decision
	for range 9 {
		if last = ask(t, limiter, Request{Key: "go:alone", Cost: 1, Plan: &plan}); last.Granted {
			remaining = append(remaining, last.Remaining)
		}
	}
	if want := []int64{4, 3, 2, 1, 0}; !slices.Equal(remaining, want) {
		t.Errorf("granted with %v left, want %v", remaining, want)
	}
	within(t, *last.RetryAfterMs, hour/5)
}

func TestTwoProcessesShareTheLimitExactly(t *testing.T) {
	if os.Getenv("SHARE") != "" {
		limiter, plan, granted := open(t), "twenty", 0
		for range 15 {
			if ask(t, limiter, Request{Key: "go:shared", Cost: 1, Plan: &plan}).Granted {
				granted++
			}
		}
		fmt.Println("granted", granted)
		return
	}
	var outputs [2]strings.Builder
	var processes [2]*exec.Cmd
	for i := range processes {
		processes[i] = exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$")
		processes[i].Env = append(os.Environ(), "SHARE=yes")
		processes[i].Stdout = &outputs[i]
		if err := processes[i].Start(); err != nil {
			t.Fatal(err)
		}
	}
	total := 0
	for i := range processes {
		if err := processes[i].Wait(); err != nil {
			t.Fatalf("%v: %s", err, &outputs[i])
		}
		var granted int
		if _, err := fmt.Sscanf(outputs[i].String(), "granted %d", &granted); err != nil {
			t.Fatal(err)
		}
		total += granted
	}
	if total != 20 {
		t.Errorf("%d granted, want 20", total)
	}
}

func TestAWaitingRequestStatesItsWait(t *testing.T) {
	limiter, plan := open(t), "five"
	if wait := ask(t, limiter, Request{Key: "go:later", Cost: 5, Plan: &plan}).WaitMs; wait != 0 {
		t.Errorf("%d ms to wait for tokens that are there", wait)
	}
	decision := ask(t, limiter, Request{Key: "go:later", Cost: 1, MaxWait: hour})
	if !decision.Granted {
		t.Error("denied")
	}
	within(t, decision.WaitMs, hour/5)
}

func TestARequestWithAnIDIsChargedOnce(t *testing.T) {
	limiter, plan, id := open(t), "five", "6ba7b810-9dad-11d1-80b4-00c04fd430c8"
	ask(t, limiter, Request{Key: "go:once", Cost: 1, Plan: &plan})
	for range 2 {
		if left := ask(t, limiter, Request{Key: "go:once", Cost: 2, ID: &id}).Remaining; left != 2 {
			t.Errorf("%d left, want 2", left)
		}
	}
}

func TestAnUnknownBucketIsAnError(t *testing.T) {
	_, err := open(t)(t.Context(), Request{Key: "nosuch", Cost: 1})
	if err == nil || !strings.Contains(err.Error(), "no bucket 'nosuch'") {
		t.Errorf("the error is %v", err)
	}
}

func TestAnAddressHasTheKeyThatTheRustLayerGivesIt(t *testing.T) {
	for address, key := range map[string]string{
		"203.0.113.7:80":            "203.0.113.7",
		"[::ffff:203.0.113.7]:80":   "203.0.113.7",
		"[64:ff9b::203.0.113.7]:80": "203.0.113.7",
		"[64:ff9b:1::1]:80":         "64:ff9b:1::/64",
		"[2001:db8:0:7:1::4]:80":    "2001:db8:0:7::/64",
		"[fe80::1%eth0]:80":         "fe80::/64",
	} {
		if found := client(address); found != key {
			t.Errorf("%s: %s, not %s", address, found, key)
		}
	}
}

func TestHTTPAnswers429WithRetryAfter(t *testing.T) {
	handled := 0
	handler := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { handled++ })
	server := httptest.NewServer(Middleware(open(t), "five", handler))
	defer server.Close()
	var last *http.Response
	for range 7 {
		answer, err := http.Get(server.URL)
		if err != nil {
			t.Fatal(err)
		}
		answer.Body.Close()
		last = answer
	}
	if handled != 5 || last.StatusCode != http.StatusTooManyRequests {
		t.Errorf("%d handled, then %s", handled, last.Status)
	}
	seconds, err := strconv.ParseInt(last.Header.Get("Retry-After"), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	within(t, seconds*1000, hour/5)
}

func TestHTTPBoundsOnlyTheCallOfTheLimiter(t *testing.T) {
	limiter := func(ctx context.Context, _ Request) (Decision, error) {
		if _, bounded := ctx.Deadline(); !bounded {
			t.Error("the limiter's context has no deadline")
		}
		return Decision{Granted: true}, nil
	}
	handled := false
	handler := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		handled = true
		if _, bounded := r.Context().Deadline(); bounded {
			t.Error("the handler's context has a deadline")
		}
	})
	request := httptest.NewRequest(http.MethodGet, "/", nil)
	Middleware(limiter, "five", handler).ServeHTTP(httptest.NewRecorder(), request)
	if !handled {
		t.Error("the request is not handled")
	}
}

func TestASerializationFailureIsRetried(t *testing.T) {
	if !onPostgres() {
		t.Skip("MySQL's and MariaDB's routines choose their isolation level themselves")
	}
	limiter, plan := open(t), "five"
	ask(t, limiter, Request{Key: "go:held", Cost: 1, Plan: &plan})
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	var connections [2]*pgx.Conn
	for i := range connections {
		connection, err := pgx.Connect(ctx, os.Getenv("DATABASE_URL"))
		if err != nil {
			t.Fatal(err)
		}
		defer connection.Close(context.Background())
		connections[i] = connection
	}
	holder, observer := connections[0], connections[1]
	transaction, err := holder.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := transaction.Exec(ctx, "select tollgate.request_token('go:held')"); err != nil {
		t.Fatal(err)
	}
	answer := make(chan error)
	go func() {
		decision, err := limiter(ctx, Request{Key: "go:held", Cost: 1})
		if err == nil && decision.Remaining != 2 {
			err = fmt.Errorf("%d left, want 2", decision.Remaining)
		}
		answer <- err
	}()
	for waiting := false; !waiting; {
		err := observer.QueryRow(ctx, `select exists (select from pg_stat_activity
			where datname = current_database() and wait_event_type = 'Lock' and query like '%request_tokens_v1%')`).Scan(&waiting)
		if err != nil {
			t.Fatal(err)
		}
	}
	// At this database's isolation level the waiting call fails now.
	if err := transaction.Commit(ctx); err != nil {
		t.Fatal(err)
	}
	if err := <-answer; err != nil {
		t.Error(err)
	}
}
