#!/bin/sh
# Makes the secrets of compose.yaml beside it, in the folder `secrets`; what is there already stays as it is.
# Only their owner can enter the folder. The files in it can be read, for users of the containers have other numbers.
set -eu
umask 077
mkdir -p "$(dirname "$0")/secrets"
cd "$(dirname "$0")/secrets"

keep() { # NAME COMMAND...: what the command prints, unless the file is there; then the command is not run
    name=$1
    shift
    if [ ! -s "$name" ]; then
        "$@" >"$name.new"
        [ -s "$name.new" ] # an empty one would be kept, and stand in the others
        chmod 0444 "$name.new"
        mv "$name.new" "$name"
    fi
}

make_payload_key() {
    printf 'first '
    openssl rand -base64 32
}

make_database_url() {
    echo "postgresql+psycopg://sexton:$(cat postgres-password)@postgres:5432/sexton"
}

keep postgres-password openssl rand -hex 24
keep s3-access-key openssl rand -hex 10
keep s3-secret-key openssl rand -hex 30
keep payload-keys make_payload_key
keep database-url make_database_url
