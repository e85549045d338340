import type { ErrorCode } from '../../errors.ts'
import type { PythonUse } from './find-python.ts'

export interface FailureRule {
  /** The default of its list if absent. */
  code?: ErrorCode
  pattern: RegExp
  /** @param found the first group that matched; empty if none did */
  sentence: string | ((found: string) => string)
}

export const DISK_FULL = /No space left on device|Errno 28\b|Disk quota exceeded/
const CHECK_NETWORK = 'Check the network and its proxy'

function rulesFor(section: string): FailureRule[] {
  const instead = `or set ${section}.python in config.yaml to a Python that has the packages`
  return [
    {
      pattern: DISK_FULL,
      code: 'insufficient_storage',
      sentence: 'The disk is full. Free some space, then try again.'
    },
    {
      pattern: /(apt install \S+-venv)/,
      sentence: command =>
        `This Python cannot create virtual environments. Install what it lacks with "${command}", ${instead}.`
    },
    {
      pattern: /No module named '?(venv|ensurepip)|ensurepip is not\s*$|ensurepip is not available/,
      sentence: `This Python cannot create virtual environments. Install its module venv (Debian and Ubuntu: "apt install python3-venv"), ${instead}.`
    },
    {
      pattern: /CERTIFICATE_VERIFY_FAILED|SSLError|invalid peer certificate|SSLCertVerificationError/,
      sentence:
        'The certificate of the package index is not trusted here. Set PIP_CERT and SSL_CERT_FILE to the certificates of your network.'
    },
    {
      pattern: /THESE PACKAGES DO NOT MATCH THE HASHES|Hash mismatch for `([^`]+)`|HashMismatch/,
      sentence: name =>
        `The package index returned ${name ? `a ${name}` : 'a package'} with another SHA-256 than corral expects. Nothing of it was ` +
        `installed. Use an index that serves PyPI's own files (${section}.package_index), ${instead}.`
    },
    {
      pattern:
        /\b(?:40[137]) (?:Client Error|Unauthorized|Forbidden|Proxy Authentication)|status code: 40[137]|HTTP status client error \(40[137]/,
      sentence: `The package index refuses access. Put credentials into its address, or choose another one (${section}.package_index).`
    },
    {
      pattern:
        /NewConnectionError|NameResolutionError|ConnectTimeoutError|Temporary failure in name resolution|Max retries exceeded|Connection refused|Failed to fetch: `([^`]+)`|error sending request for url|dns error|ReadTimeoutError|ProxyError|RemoteDisconnected|Connection reset|IncompleteRead/,
      sentence: url =>
        `The package index cannot be reached${url && ` (${url})`}. ${CHECK_NETWORK} (HTTPS_PROXY), set ${section}.package_index to a mirror, ${instead}.`
    },
    {
      pattern: /Could not find a version that satisfies the requirement (\S+).*from versions: none/,
      sentence: name =>
        `The package index did not return ${name}: it cannot be reached, or has none for this Python and machine. ` +
        `${CHECK_NETWORK}, try another Python or another index (${section}.package_index), ${instead}.`
    },
    {
      pattern:
        /No matching distribution found for (\S+)|Because there (?:is|are) no versions? of (\S+)|(\S+) has no wheels with a matching/,
      sentence: name =>
        `The package index has no ${name} for this Python and machine. Try another Python, another index (${section}.package_index), ${instead}.`
    },
    {
      pattern: /MemoryError|Cannot allocate memory/,
      sentence: 'This machine does not have enough memory. Stop loaded models or other programs, then try again.'
    }
  ]
}

/** The rule's explanation of a line, if the rule matches. */
export function sentenceOf({ pattern, sentence }: FailureRule, line: string): string | undefined {
  const match = pattern.exec(line)
  if (!match) return undefined
  return typeof sentence === 'string' ? sentence : sentence(match.slice(1).find(group => group !== undefined) ?? '')
}

/** A tool's last output, as a sentence. */
export function lastLines(lines: readonly string[]): string | undefined {
  const last = lines.filter(line => line.trim() !== '').slice(-3)
  return last.length > 0 ? `Its last output: ${last.join(' / ').slice(0, 600)}` : undefined
}

/** Why pip, uv or venv failed, from the last lines. */
export function installFailure(
  lines: readonly string[],
  { section, code }: Pick<PythonUse, 'section' | 'code'>
): { code: ErrorCode; sentence: string } {
  for (const rule of rulesFor(section)) {
    for (const line of [...lines].reverse()) {
      const sentence = sentenceOf(rule, line)
      if (sentence !== undefined) return { code: rule.code ?? code, sentence }
    }
  }
  return { code, sentence: lastLines(lines) ?? '' }
}
