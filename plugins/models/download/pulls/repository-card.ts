import type { PullRequest } from '../../../../core/contracts/downloads.ts'
import type { Capability } from '../../../../core/contracts/models.ts'
import type { CardReply } from '../../../../core/contracts/native-records.ts'
import type { Waiting } from '../../../../core/contracts/progress.ts'
import { CorralError } from '../../../../core/errors.ts'
import { checkpointModels, speechModels } from '../../../../core/models/model-folder.ts'
import { originInWords } from '../../../../core/models/stored-variant.ts'
import { templateCapabilities } from '../../../../core/models/template-code.ts'
import { refusal } from '../choice/choice.ts'
import { parsePullReference } from '../choice/pull-reference.ts'
import { allowedAddresses, type DownloadContext, findRepository, readText, resolveName } from './pull-planner.ts'

/** Larger texts of a repository are left out. */
const MAX_TEXT_BYTES = 2 ** 20
/** The rest of a longer README is at the hub. */
const MAX_README_CHARACTERS = 100_000

/** Returns what a repository says about itself, by its files. See `Downloads.card`. */
export async function readCard(
  context: DownloadContext,
  { model, caller }: PullRequest,
  waiting: Waiting
): Promise<CardReply> {
  const known = resolveName(context, model)
  if (known && 'here' in known)
    throw refusal('repo_not_found', `"${model}" ${originInWords(known.here.origin)}, not from a hub.`)
  const privateAddresses = allowedAddresses(context, caller.isLocal === true)
  const reference = parsePullReference(known?.model ?? model, context.hubs)
  const { hub, repository } = await findRepository(context, { ...reference, privateAddresses }, waiting)
  const { id, revision, address, gated, page, files } = repository
  const signal = waiting.signal ?? new AbortController().signal
  /** Returns the text of the file nearest to the top with this name, unless the hub refuses it. */
  const read = async (name: string) => {
    const [file] = files
      .filter(({ path, size = 0 }) => path.toLowerCase().split('/').at(-1) === name && size <= MAX_TEXT_BYTES)
      .sort((a, b) => a.path.split('/').length - b.path.split('/').length)
    if (!file) return undefined
    const locate = () => hub.locate(repository, file, signal, privateAddresses)
    const text = await readText(context, repository, file.path, locate, signal).catch(error => {
      if (signal.aborted || !(error instanceof CorralError)) throw error
      return undefined
    })
    return text === undefined ? undefined : { text, path: file.path }
  }
  const readme = await read('readme.md')
  const chatTemplate = page?.chatTemplate ?? (await read('chat_template.jinja'))?.text
  const { license, tags, body } = splitReadme(readme?.text ?? '')
  return {
    ...{ hub: hub.name, id, revision, address, gated },
    ...(license !== undefined && { license }),
    capabilities: findCapabilities({ paths: files.map(({ path }) => path), tags, chatTemplate }),
    ...(body !== '' && { readme: body.slice(0, MAX_README_CHARACTERS) }),
    readme_address: page && readme ? page.folder + readme.path.split('/').map(encodeURIComponent).join('/') : address
  }
}

/**
 * Splits a README into facts from its front matter and its text. The front matter is not parsed as YAML: that of
 * embedding models has thousands of lines with results of benchmarks.
 */
export function splitReadme(text: string): { license: string | undefined; tags: string[]; body: string } {
  const [whole = '', facts = ''] = /^\uFEFF?---[ \t]*\r?\n(?:([\s\S]*?)\r?\n)?---[ \t]*(?:\r?\n|$)/.exec(text) ?? []
  const values = (name: string) =>
    (new RegExp(`^${name}:(.*(?:\\r?\\n[ \\t]*- .*)*)`, 'm').exec(facts)?.[1] ?? '')
      .slice(0, 2000)
      .split(/[\n,]/)
      .map(value => value.replace(/^[\s"'[-]+|[\s"'\]]+$/g, '').slice(0, 60))
      .filter(value => value !== '')
  const [license] = [...values('license_name'), ...values('license')]
  return { license, tags: ['pipeline_tag', 'tasks', 'tags'].flatMap(values), body: text.slice(whole.length).trim() }
}

const EMBEDDING = /^(?:feature-extraction|sentence-similarity|sentence-transformers|sentence-embedding)$/
const RANKING = /^(?:text-ranking|reranker)$/

/** Returns the capabilities that files, tags and the chat template of a repository show. */
export function findCapabilities(facts: { paths: string[]; tags: string[]; chatTemplate?: string | undefined }) {
  const { paths, tags, chatTemplate } = facts
  const isWeights = (path: string) => /\.(?:gguf|safetensors)$/i.test(path)
  const [speech] = paths.some(isWeights) ? [] : speechModels(paths)
  if (speech) return [speech.format === 'ggml' ? 'transcribe' : 'speak']
  if (checkpointModels(paths).length > 0) return ['draw']
  if (tags.some(tag => RANKING.test(tag))) return ['rerank']
  if (tags.some(tag => EMBEDDING.test(tag))) return ['embedding']
  const capabilities: Capability[] = templateCapabilities(chatTemplate)
  const isSeeing = paths.some(path => /mmproj[^/]*\.gguf$/i.test(path)) || tags.includes('image-text-to-text')
  if (isSeeing) capabilities.push('vision')
  if (tags.includes('audio-text-to-text')) capabilities.push('audio')
  return capabilities
}
