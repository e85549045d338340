import { text } from 'node:stream/consumers'
import { rootCertificates } from 'node:tls'
import type { FastifyBaseLogger } from 'fastify'
import { Type } from 'typebox'
import type { PullCaller, PullPlan } from '../../../../core/contracts/downloads.ts'
import type { FileLocation } from '../../../../core/contracts/hubs.ts'
import { Format, Sha256 } from '../../../../core/contracts/native-records.ts'
import type { Progress } from '../../../../core/contracts/progress.ts'
import type { PinnedTls, Services } from '../../../../core/contracts/services.ts'
import type { StoredVariant } from '../../../../core/contracts/storage.ts'
import { CorralError, errorCodes, errorMessage } from '../../../../core/errors.ts'
import { Titled } from '../../../../core/http/request-fields.ts'
import { formatModelName, parseModelName } from '../../../../core/models/model-name.ts'
import { conflictingVariant, originInWords } from '../../../../core/models/stored-variant.ts'
import { abortAfter } from '../../../../core/system/abort-signals.ts'
import { parseJson } from '../../../../core/system/json-file.ts'
import { bareHost } from '../../../../core/system/private-address.ts'
import { isUsablePath } from '../../../../core/system/usable-path.ts'
import { type ConnectionSettings, connectionFault, NodeConnection } from '../nodes/node-connection.ts'

/*
 * How a node copies a model from another one. The gateway asks the node that has it for a ticket and passes the ticket
 * to the node that lacks it, which redeems it for the list of files and permission to read them. So no node gets
 * another node's key, and a ticket is useless once redeemed.
 */

export const TICKETS_PATH = '/api/cluster/tickets'
const REDEEM_PATH = '/api/cluster/tickets/redeem'
export const COPY_PATH = '/api/cluster/copy'
const filePath = (sha256: string) => `/api/cluster/files/${sha256}`

export const OfferSchema = Titled('ModelOffer', {
  owner: Type.String(),
  name: Type.String(),
  label: Type.String({ description: 'Variant, such as Q8_0' }),
  revision: Type.String({ description: 'Identifies exactly these files at that server' }),
  format: Format,
  digest: Sha256("64 hex digits, derived from the files' digests"),
  origin: Type.Object(
    {
      kind: Type.Enum(['bundled', 'import', 'hub', 'made']),
      from: Type.String(),
      revision: Type.Optional(Type.String()),
      tag: Type.Optional(Type.String())
    },
    { additionalProperties: true, description: 'Its source, which a copy keeps' }
  ),
  defaults: Type.Optional(Type.Unsafe<NonNullable<StoredVariant['defaults']>>({ type: 'object' })),
  files: Type.Array(
    Type.Object(
      {
        path: Type.String(),
        size: Type.Integer({ minimum: 0 }),
        sha256: Sha256(),
        role: Type.Enum(['model', 'projector', 'draft', 'other'])
      },
      { additionalProperties: true }
    ),
    { minItems: 1 }
  ),
  token: Type.String({ description: 'For GET /api/cluster/files/{sha256}, as "Authorization: Bearer <token>"' })
})

/** The hub of copies, in the records of pulls. */
const HUB = 'cluster'
const NOTHING_NEEDED = { required: 0, available: 0, fits: true }

export interface CopySource {
  name: string
  url: string
  tlsName?: string | undefined
  pinned?: PinnedTls | undefined
  ticket: string
}

export type SourceFiles = ReturnType<typeof sourceFiles>
export type OpenSource = Awaited<ReturnType<SourceFiles['open']>>

interface SourceSettings extends ConnectionSettings {
  silence: number
  authority: string | undefined
}

/** Reads models of other servers with tickets that these have issued. */
export function sourceFiles(
  { storage, downloads }: Pick<Services, 'storage' | 'downloads'>,
  settings: SourceSettings,
  log: Pick<FastifyBaseLogger, 'warn'>
) {
  /** Sources of copies in progress, with the files that were located there. */
  const copied = new Map<OpenSource, Set<string>>()

  /** Redeems a ticket. @throws CorralError `copy_failed` */
  async function open(source: CopySource, signal: AbortSignal) {
    const { url, tlsName, name, ticket, pinned } = source
    const { authority } = settings
    const known = { name, url, ...(tlsName !== undefined && { tlsName }), ...(pinned && { pinned }) }
    const until = (signal: AbortSignal) => AbortSignal.any([signal, abortAfter(settings.silence)])
    const redeeming = new NodeConnection(known, settings)
    let offer: ReturnType<typeof readOffer>
    try {
      const reply = await redeeming.send('POST', REDEEM_PATH, { body: { ticket }, signal: until(signal) })
      const offered = await text(reply.body)
      if (reply.status !== 200) throw new Error(`it answered with status ${reply.status}`)
      offer = readOffer(offered, source)
    } catch (error) {
      signal.throwIfAborted()
      // The exact fault of an address is only logged, so that clients cannot probe addresses with it.
      log.warn({ source: name, url, reason: connectionFault(error) }, 'a model cannot be copied from a server')
      throw failed('The model', source, 'the member that lacks it cannot get it from there, and its log says why')
    } finally {
      await redeeming.close()
    }
    const { plan, digest, token } = offer
    const connection = new NodeConnection({ ...known, key: token }, settings)
    const files = new Map(plan.files.map(file => [file.sha256, file]))
    return {
      plan,
      digest,
      /** Returns where a file can be read, or undefined if that server lacks it. */
      locate(sha256: string | undefined): FileLocation | undefined {
        const file = files.get(sha256 ?? '')
        if (!file) return undefined
        return {
          url: connection.url + filePath(file.sha256),
          headers: { authorization: `Bearer ${token}`, 'accept-encoding': 'identity' },
          proxy: '',
          privateAddresses: [bareHost(new URL(url).hostname)],
          tls: {
            ...(authority !== undefined && { ca: [...rootCertificates, authority] }),
            ...(tlsName !== undefined && { servername: tlsName }),
            ...(pinned && { ...pinned, ca: [pinned.ca] })
          },
          size: file.size,
          sha256: file.sha256
        }
      },
      /** Whether it still permits reading the file. */
      async answers(sha256: string, signal: AbortSignal): Promise<boolean> {
        try {
          const reply = await connection.send('HEAD', filePath(sha256), { signal: until(signal) })
          reply.body.destroy()
          return reply.status === 200
        } catch {
          signal.throwIfAborted()
          return false
        }
      },
      close: () => connection.close()
    }
  }

  /** @throws CorralError `model_exists` if a copy would replace something else */
  function refuseOther({ name, label, origin }: ReturnType<typeof readOffer>['plan'], present?: StoredVariant): void {
    const other = present ?? conflictingVariant(storage.variants(name), origin, label)
    if (!other) return
    throw new CorralError(
      'model_exists',
      `"${other.publicName}" is here with other files: it ${originInWords(other.origin)}. Pull it here again, or remove it ("corral rm"), to get the files of the other members.`,
      { param: 'model' }
    )
  }

  const gone = (id: string) =>
    new CorralError(
      'copy_failed',
      `The server that "${id}" was being copied from is unknown or no longer answers. The part that was copied is kept. The next request for it at the gateway resumes the copy, and "corral pull ${id}" fetches it from its hub.`
    )
  downloads.addHub({
    name: HUB,
    title: 'The members of a cluster',
    prefixes: [],
    async repository({ id }) {
      throw gone(id)
    },
    async locate({ id }, { sha256 }, signal) {
      for (const [source, located] of copied) {
        const location = source.locate(sha256)
        if (!location || sha256 === undefined) continue
        // The file was located there before, and the location did not work.
        if (located.has(sha256) && !(await source.answers(sha256, signal))) continue
        located.add(sha256)
        return location
      }
      throw gone(id)
    }
  })

  return {
    open,

    /**
     * Copies a model or resumes its copy.
     * @param digest the model's digest; others are refused
     * @param label under which it is stored, if not its own
     * @throws CorralError `copy_failed` if the source is at fault; `model_exists`, `insufficient_storage` and other
     * errors of pulls; the signal's reason
     */
    async copy(
      source: CopySource,
      digest: string,
      caller: PullCaller,
      signal: AbortSignal,
      onProgress: (progress: Progress) => void,
      label?: string
    ): Promise<StoredVariant> {
      const opened = await open(source, signal)
      const plan = { ...opened.plan, ...(label !== undefined && { label }) }
      const name = { ...plan.name, variant: plan.label }
      const model = formatModelName(name)
      const subject = `${model} from ${source.name}`
      copied.set(opened, new Set())
      try {
        if (opened.digest !== digest) throw failed(model, source, 'it now has other files of it')
        const present = storage.find(name)
        if (present?.digest === digest) return present
        refuseOther(plan, present)
        const pull = await downloads.pull(plan, { detached: false, caller })
        await pull?.watch(
          () => {
            const { completed, total } = pull.record()
            onProgress({ phase: 'copying', subject, completed, total, fraction: total ? completed / total : 1 })
          },
          signal,
          () => onProgress({ phase: 'waiting', subject: 'for other pulls' })
        )
        return storage.get(name)
      } catch (error) {
        signal.throwIfAborted()
        throw SOURCE_FAULT_CODES.has((error as CorralError).code) ? failed(model, source, explainFault(error)) : error
      } finally {
        copied.delete(opened)
        await opened.close()
      }
    }
  }
}

/** Failures of the server that a model is copied from, or of the connection to it. */
const SOURCE_FAULT_CODES = new Set(
  errorCodes(
    'hub_unreachable hub_forbidden hub_rate_limited checksum_mismatch address_not_allowed unsupported_capability'
  )
)

function explainFault(error: unknown): string {
  const { code, details } = error as CorralError
  if (code === 'checksum_mismatch') return `the content of ${details?.path} does not match its digest`
  if (code === 'unsupported_capability') return errorMessage(error).replace(/\.$/, '')
  return 'it stopped sending the files'
}

const failed = (model: string, { name }: CopySource, why: string) =>
  new CorralError(
    'copy_failed',
    `${model === 'The model' ? model : `"${model}"`} could not be copied from "${name}": ${why}. The part that was copied is kept. Send the request again, or pull the model at the member that lacks it.`
  )

/**
 * Parses a server's offer into the plan of a pull, which records that server's origin of the model.
 * @throws Error if no model can be stored from it
 */
function readOffer(text: string, { name: source, url }: CopySource) {
  const { value, fault } = parseJson(text, OfferSchema)
  if (!value) throw new Error(`its offer cannot be used: ${fault}`)
  const { label, token, digest, files, format, origin, defaults, revision } = value
  const wrong = files.find(({ path }) => !isUsablePath(path))
  if (wrong) throw new Error(`it names a file ${JSON.stringify(wrong.path.slice(0, 200))}`)
  const { owner, name } = parseModelName(`${value.owner}/${value.name}:${label}`)
  const plan = {
    name: { owner, name },
    label,
    format,
    repository: { hub: HUB, id: `${owner}/${name}`, revision, address: url, gated: false },
    files: files.map(({ path, size, sha256, role }) => ({ path, storedPath: path, size, sha256, role })),
    size: files.reduce((sum, { size }) => sum + size, 0),
    reason: `It is copied from ${source}.`,
    choices: [],
    memory: NOTHING_NEEDED,
    disk: NOTHING_NEEDED,
    warnings: [],
    present: false,
    isLocal: false,
    origin,
    ...(defaults && { defaults })
  } satisfies PullPlan
  return { plan, digest, token }
}
