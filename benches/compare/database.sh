# Starts a PostgreSQL server in $1, fills it with pgbench and a table of mixed rows, and writes $3
# bytes of these tables, as its disk has them, to $2.
set -e
dir=$1 out=$2 bytes=$3
for bin in /usr/lib/postgresql/*/bin; do PATH=$bin:$PATH; done
for tool in initdb postgres pgbench psql; do command -v $tool > /dev/null; done
rm -rf "$dir"
mkdir -p "$dir"
# PostgreSQL refuses to run as root, and its socket needs a short path.
sockets=$(mktemp -d)
as=
if [ "$(id -u)" = 0 ]; then
    data=$sockets/data
    chown nobody "$sockets"
    as='setpriv --reuid=nobody --regid=nogroup --clear-groups'
else
    data=$dir/data
fi
cd /
$as initdb -A trust -U test --no-sync -D "$data"
$as postgres -c listen_addresses= -c fsync=off -c max_wal_size=8GB -D "$data" -k "$sockets" 2> /dev/null &
server=$!
trap 'kill -QUIT $server 2> /dev/null; wait $server; rm -rf "$sockets"' EXIT
sql() { psql -q -h "$sockets" -U test -d postgres -v ON_ERROR_STOP=1 "$@"; }
for _ in $(seq 300); do sql -c 'select 1' > /dev/null 2>&1 && break; sleep 0.1; done
half=$((bytes / 2))
# One unit of scale is 12.8 MB of accounts. A row of `mixed` has more than 150 bytes.
pgbench -q -i -h "$sockets" -U test -s $((half / 12500000 + 1)) postgres 2> /dev/null
sql -c "create table mixed as
    select n as id, now() - n * interval '1 second' as sold, md5(n::text) as token,
        md5((-n)::text)::uuid as key,
        (n::bigint * 7919 % 100000) / 100.0 as price, n % 3 = 0 as express,
        (array['new', 'paid', 'shipped', 'returned'])[1 + n % 4] as status,
        repeat(md5((n % 997)::text), 1 + n % 4) as note
    from generate_series(1, $((half / 150 + 1000))) n"
sql -c checkpoint
# Half of the bytes from each table, with its segments in order.
for table in mixed pgbench_accounts; do
    path=$data/$(sql -At -c "select pg_relation_filepath('$table')")
    ls -v "$path" "$path".[0-9]* 2> /dev/null | xargs cat 2> /dev/null | head -c "$half"
done > "$out"
[ "$(stat -c %s "$out")" -ge $((2 * half)) ]
