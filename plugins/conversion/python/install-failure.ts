import type { ErrorCode } from '../../../core/errors.ts'

export interface InstallFailure {
  code: ErrorCode
  /** What is wrong and what to do. */
  sentence: string
}

interface Rule {
  pattern: RegExp
  code?: ErrorCode
  sentence: (match: RegExpExecArray) => string
}

const INSTEAD = 'or name a Python that has the packages as conversion.python in config.yaml'

const RULES: Rule[] = [
  {
    pattern: /No space left on device|Errno 28\b|Disk quota exceeded/,
    code: 'insufficient_storage',
    sentence: () => 'The disk is full. Make room, then try again.'
  },
  {
    pattern: /(apt install \S+-venv)/,
    sentence: match =>
      `This Python cannot make virtual environments. Install what it lacks with "${match[1]}", ${INSTEAD}.`
  },
  {
    pattern: /No module named '?(venv|ensurepip)|ensurepip is not\s*$|ensurepip is not available/,
    sentence: () =>
      `This Python cannot make virtual environments. Install its module venv (Debian and Ubuntu: "apt install python3-venv"), ${INSTEAD}.`
  },
  {
    pattern: /CERTIFICATE_VERIFY_FAILED|SSLError|invalid peer certificate|SSLCertVerificationError/,
    sentence: () =>
      'The certificate of the package index is not trusted here. Name the certificates of your network with PIP_CERT and SSL_CERT_FILE.'
  },
  {
    pattern:
      /\b(?:40[137]) (?:Client Error|Unauthorized|Forbidden|Proxy Authentication)|status code: 40[137]|HTTP status client error \(40[137]/,
    sentence: () =>
      'The package index refuses access. Put credentials into its address, or choose another one (conversion.package_index).'
  },
  {
    pattern:
      /NewConnectionError|NameResolutionError|ConnectTimeoutError|Temporary failure in name resolution|Max retries exceeded|Connection refused|Failed to fetch: `([^`]+)`|error sending request for url|dns error|ReadTimeoutError|ProxyError|RemoteDisconnected|Connection reset|IncompleteRead/,
    sentence: match =>
      `The package index cannot be reached${match[1] ? ` (${match[1]})` : ''}. Check the network and its proxy (HTTPS_PROXY), name a mirror as conversion.package_index, ${INSTEAD}.`
  },
  {
    pattern: /Could not find a version that satisfies the requirement (\S+).*from versions: none/,
    sentence: match =>
      `The package index gave no ${match[1]}: it cannot be reached, or has none for this Python and machine. ` +
      `Check the network and its proxy, try another Python or another index (conversion.package_index), ${INSTEAD}.`
  },
  {
    pattern:
      /No matching distribution found for (\S+)|Because there (?:is|are) no versions? of (\S+)|(\S+) has no wheels with a matching/,
    sentence: match =>
      `The package index has no ${match[1] ?? match[2] ?? match[3]} for this Python and machine. Try another Python, another index (conversion.package_index), ${INSTEAD}.`
  },
  {
    pattern: /MemoryError|Cannot allocate memory/,
    sentence: () => 'The memory of this machine does not suffice. Stop loaded models or other programs, then try again.'
  }
]

/** What the failure of pip, uv or venv means, from its last lines. Pure. */
export function installFailure(lines: readonly string[]): InstallFailure {
  for (const { pattern, code = 'conversion_failed', sentence } of RULES) {
    for (const line of [...lines].reverse()) {
      const match = pattern.exec(line)
      if (match) return { code, sentence: sentence(match) }
    }
  }
  const last = lines.filter(line => line.trim() !== '').slice(-3)
  return {
    code: 'conversion_failed',
    sentence: last.length > 0 ? `It last said: ${last.join(' / ').slice(0, 600)}` : ''
  }
}
