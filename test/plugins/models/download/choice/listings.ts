import { readFixture } from '../../../../support/fixture.ts'
import { type Expectation, expandShards, listing } from './listing.ts'

interface Repository {
  id: string
  files: string
  lacks?: string
  weightsInIndex?: string[]
  gives: Record<string, string | [label: string | null, ...paths: string[]]>
}

const expand = (paths: string[]) => paths.flatMap(path => expandShards([path, 0]).map(([shard]) => shard))

/** Real repositories (file names, approximate sizes). */
export const LISTINGS = readFixture<Repository[]>('repositories.yaml').map(
  ({ id, files, lacks, weightsInIndex, gives }): Expectation => ({
    id,
    files: listing(files).filter(({ path }) => !lacks || !path.includes(lacks)),
    ...(weightsInIndex && { weightsInIndex: expand(weightsInIndex) }),
    gives: Object.fromEntries(
      Object.entries(gives).map(([tag, given]) => {
        if (typeof given === 'string') return [tag, new RegExp(given)]
        const [label, ...paths] = given
        return [tag, [label ?? undefined, ...expand(paths)]]
      })
    )
  })
)
