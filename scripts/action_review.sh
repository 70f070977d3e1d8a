#!/usr/bin/env bash
# The review step of action.yml: annotations on the log, the comment in a file, the job summary, and the exit code of the
# policy as an output. BASE and HEAD are commits; nothing of the tree is checked out or run.
set -euo pipefail

recipegen="$RUNNER_TEMP/recipegen/bin/recipegen"
file="$RUNNER_TEMP/recipegen-review.md"
if [[ -z "${BASE:-}" || -z "${HEAD:-}" ]]; then
  echo "::error::recipegen reviews pull requests; this event has no base and head"
  exit 2
fi
for commit in "$BASE" "$HEAD"; do  # a shallow clone lacks them
  git cat-file -e "$commit^{commit}" 2>/dev/null || git fetch --quiet --no-tags --depth=1 origin "$commit"
done
git merge-base "$BASE" "$HEAD" >/dev/null 2>&1 || git fetch --quiet --no-tags --unshallow origin "$BASE" "$HEAD" || true

options=(--base "$BASE" --head "$HEAD")
[[ -n "${HARDWARE:-}" ]] && options+=(--hardware "$HARDWARE")
read -r -a paths <<<"${PATHS:-}"
(( ${#paths[@]} )) && options+=(-- "${paths[@]}")

"$recipegen" review --format annotations "${options[@]}" || true
code=0
"$recipegen" review --format github --output "$file" "${options[@]}" || code=$?
if [[ ! -s "$file" ]]; then
  exit "$code"
fi
quiet=false
if [[ "${SILENT:-none}" != none ]] && ! "$recipegen" review --format github --silent-below "$SILENT" "${options[@]}" | grep -q .; then
  quiet=true
fi
cat "$file" >>"$GITHUB_STEP_SUMMARY"
{
  echo "file=$file"
  echo "code=$code"
  echo "quiet=$quiet"
} >>"$GITHUB_OUTPUT"
