import { crc32, deflateSync } from 'node:zlib'

/** The lines of the icon in a square of 32, as in index.html: from, to. */
const LINES = [
  [5, 8, 5, 26],
  [16, 5, 16, 27],
  [27, 8, 27, 26],
  [3, 13, 29, 13],
  [3, 21, 29, 21]
]
const INK = [0xa8, 0x48, 0x1f]
const PAPER = [0xfb, 0xfa, 0xf8]

function chunk(name, data) {
  const content = Buffer.concat([Buffer.from(name), data])
  const ends = [Buffer.alloc(4), Buffer.alloc(4)]
  ends[0].writeUInt32BE(data.length)
  ends[1].writeUInt32BE(crc32(content))
  return Buffer.concat([ends[0], content, ends[1]])
}

function distance(x, y, line) {
  const [x1, y1, x2, y2] = line
  const length = (x2 - x1) ** 2 + (y2 - y1) ** 2
  const share = Math.min(1, Math.max(0, ((x - x1) * (x2 - x1) + (y - y1) * (y2 - y1)) / length))
  return Math.hypot(x - x1 - share * (x2 - x1), y - y1 - share * (y2 - y1))
}

/**
 * Draws the icon as PNG, for systems that do not show SVG.
 * @param share of the width that the lines take; systems cut maskable icons to a circle of 80 %
 */
export function drawIcon(size, share) {
  const pixels = Buffer.alloc(size * (size * 3 + 1))
  const scale = 32 / size / share
  const place = at => (at + 0.5 - size / 2) * scale + 16
  for (let row = 0; row < size; row += 1) {
    for (let column = 0; column < size; column += 1) {
      let nearest = Infinity
      for (const line of LINES) nearest = Math.min(nearest, distance(place(column), place(row), line))
      const cover = Math.min(1, Math.max(0, (1.5 - nearest) / scale + 0.5))
      const at = row * (size * 3 + 1) + 1 + column * 3
      for (let part = 0; part < 3; part += 1) {
        pixels[at + part] = Math.round(PAPER[part] + cover * (INK[part] - PAPER[part]))
      }
    }
  }
  const header = Buffer.alloc(13)
  header.writeUInt32BE(size)
  header.writeUInt32BE(size, 4)
  // Eight bits for each of red, green and blue.
  header.set([8, 2], 8)
  const parts = [chunk('IHDR', header), chunk('IDAT', deflateSync(pixels)), chunk('IEND', Buffer.alloc(0))]
  return Buffer.concat([Buffer.from('\x89PNG\r\n\x1a\n', 'latin1'), ...parts])
}
