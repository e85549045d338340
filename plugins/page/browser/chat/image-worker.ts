/* A worker that scales images for models, so that no frame of the page is late. */

/** Longest side in pixels. Models scale larger images down themselves. */
const MAX_SIDE = 2048
/** Larger PNGs become JPEGs if they are opaque. */
const MAX_PNG_BYTES = 2_000_000
const JPEG = { type: 'image/jpeg', quality: 0.9 }
/** Bytes of a JPEG in which its rotation is written. */
const EXIF_BYTES = 65_536

/** The image to send, and its size before and now, such as `4032 × 3024`. */
export type ScaledImage = { blob: Blob; from: string; to: string }

addEventListener('message', async ({ data }: MessageEvent<File>) => {
  // A failure ends the wait for the reply, too.
  postMessage(await scaleImage(data).catch(() => undefined))
})

/** @throws DOMException if it cannot be decoded */
async function scaleImage(file: File): Promise<ScaledImage> {
  const image = await createImageBitmap(file)
  const ratio = Math.min(1, MAX_SIDE / Math.max(image.width, image.height))
  const [width, height] = [image.width, image.height].map(side => Math.max(1, Math.round(side * ratio)))
  const sizes = { from: `${image.width} × ${image.height}`, to: `${width} × ${height}` }
  const isKept = file.type === 'image/png' || (file.type === 'image/jpeg' && !(await hasExif(file)))
  if (ratio === 1 && isKept) return { blob: file, ...sizes }
  const canvas = new OffscreenCanvas(width!, height!)
  const context = canvas.getContext('2d')!
  context.imageSmoothingQuality = 'high'
  context.drawImage(image, 0, 0, width!, height!)
  const { data } = context.getImageData(0, 0, width!, height!)
  const isOpaque = data.every((value, at) => at % 4 !== 3 || value === 255)
  // Photos become small, drawings and screenshots stay sharp.
  if (isOpaque && !/png|gif|bmp/.test(file.type)) return { blob: await canvas.convertToBlob(JPEG), ...sizes }
  const png = await canvas.convertToBlob()
  return { blob: isOpaque && png.size > MAX_PNG_BYTES ? await canvas.convertToBlob(JPEG) : png, ...sizes }
}

async function hasExif(file: File): Promise<boolean> {
  return new TextDecoder('latin1').decode(await file.slice(0, EXIF_BYTES).arrayBuffer()).includes('Exif')
}
