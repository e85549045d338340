import type { FastifyBaseLogger } from 'fastify'
import type { FileMirror, PullPlan } from '../../../../core/contracts/downloads.ts'
import { errorMessage } from '../../../../core/errors.ts'
import { formatModelName, modelKey } from '../../../../core/models/model-name.ts'
import type { ClusterNodes } from '../nodes/nodes.ts'
import { requestTicket } from './copies.ts'
import type { OpenSource, SourceFiles } from './source-files.ts'

const MAX_COUNT = 4

interface Found {
  member: string
  source: OpenSource
  /** Digests of files already located there. A file that failed or was different is not located there again. */
  given: Set<string>
}

/** Lets pulls of this server read files from nodes that have the same files, because nodes are closer than the hub. */
export function nodeFiles(
  members: ClusterNodes,
  sources: SourceFiles,
  log: Pick<FastifyBaseLogger, 'info' | 'warn'>
): FileMirror {
  const found = new WeakMap<PullPlan, Promise<Found[]>>()

  async function findAt(plan: PullPlan, signal: AbortSignal): Promise<Found[]> {
    const key = `${modelKey(plan.name)}:${plan.label.toLowerCase()}`
    const holders = members.all().filter(({ view, models }) => view.state !== 'away' && models.has(key))
    const opened = await Promise.all(
      holders.slice(0, MAX_COUNT).map(async member => {
        const { publicName } = member.models.get(key)!
        try {
          const { url, tlsName } = member.known
          const ticket = await requestTicket(member, publicName, signal)
          const source = await sources.open({ name: member.name, url: new URL(url).origin, tlsName, ticket }, signal)
          await source.close()
          return [{ member: member.name, source, given: new Set<string>() }]
        } catch (error) {
          signal.throwIfAborted()
          log.warn(
            { member: member.name, model: publicName, reason: errorMessage(error) },
            'a member does not provide its files'
          )
          return []
        }
      })
    )
    return opened.flat()
  }

  return {
    async locate(plan, { sha256, path }, signal) {
      if (sha256 === undefined || plan.origin !== undefined) return undefined
      const finding = found.get(plan) ?? findAt(plan, signal)
      found.set(plan, finding)
      for (const { member, source, given } of await finding) {
        const location = given.has(sha256) ? undefined : source.locate(sha256)
        if (!location) continue
        given.add(sha256)
        log.info(
          { member, model: formatModelName({ ...plan.name, variant: plan.label }), file: path },
          'a file comes from a member'
        )
        return location
      }
      return undefined
    }
  }
}
