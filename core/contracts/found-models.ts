import { type Static, Type } from 'typebox'
import type { ModelName } from '../models/model-name.ts'
import type { Caller } from './callers.ts'
import { Bytes, Format } from './native-records.ts'
import type { Waiting } from './progress.ts'
import type { StoredVariant } from './storage.ts'

const loose = { additionalProperties: true }

/** What the cache of another tool holds. */
export const FoundModelsSchema = Type.Object(
  {
    from: Type.String({ description: 'The tool' }),
    folder: Type.String({ description: 'Where was looked: an absolute path, or several with commas between' }),
    models: Type.Array(
      Type.Object(
        {
          found: Type.String({ description: 'What it is called in that tool; names it in an import' }),
          name: Type.String({ description: 'What it would be called here' }),
          format: Format,
          size: Bytes('Of all its files'),
          path: Type.String({ description: 'Absolute path of its first file, or of its folder' }),
          problem: Type.Optional(Type.String({ description: 'Why it cannot be taken' })),
          notes: Type.Optional(Type.Array(Type.String(), { description: 'What an import would not keep, and why' })),
          present: Type.Boolean({ description: 'It is stored already' }),
          storedAs: Type.Optional(Type.String({ description: 'Under which name they are' }))
        },
        loose
      )
    ),
    unreadable: Type.Optional(Type.Array(Type.String(), { description: 'What could not be looked at, and why' }))
  },
  { ...loose, title: 'FoundModels' }
)
export type FoundModels = Static<typeof FoundModelsSchema>
export type FoundModel = FoundModels['models'][number]

/** Takes over models that other tools have downloaded. */
export interface Adoption {
  /**
   * Looks into a tool's cache; empty where there is none.
   * @param caller over the network only what lies below `storage.import_roots` is found
   * @throws CorralError `invalid_request` for an unknown tool, or when the cache may not be read; `path_not_allowed`
   */
  find(from: string, caller?: Caller): Promise<FoundModels>
  /**
   * Stores what was found, by link where possible.
   * @param name undefined takes the name it was found with
   * @returns `linked`: its weights were not copied; `notes`: what was not kept, and why
   * @throws CorralError `model_not_found` where the cache has no such model, `invalid_request` with its problem, and
   * whatever Storage.adopt throws
   */
  adopt(
    from: string,
    found: string,
    name: ModelName | undefined,
    waiting: Waiting,
    caller?: Caller
  ): Promise<{ variant: StoredVariant; linked: boolean; notes: string[] }>
}
